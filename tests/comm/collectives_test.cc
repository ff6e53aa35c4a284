// Every collective against a plain loop over all ranks, for each number of ranks and each element type.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "support/thread_world.h"

namespace untied::test {
namespace {

constexpr StreamKind kStream = StreamKind::kComm;
const dim_t kCounts[] = {0, 1, 3, 113, 1023, 1025, 2500};

// Element i of rank r's input: fp32 sums of it depend on their order, so equal bits mean equal order. Not inlined: each place
// could contract the product and the sum in another way.
template <class T>
[[gnu::noinline]] T input(int rank, dim_t i) {
  if constexpr (std::is_floating_point_v<T>)
    return static_cast<T>(std::sin(1.0 + 7 * rank + 0.37 * static_cast<double>(i)));
  else return static_cast<T>(1000 * rank + 3 * i + 1);
}
template <class T>
std::vector<T> inputs(int rank, dim_t n) {
  std::vector<T> v(n);
  for (dim_t i = 0; i < n; ++i) v[i] = input<T>(rank, i);
  return v;
}

template <class T, DType kType>
struct Element {
  using Type = T;
  static constexpr DType dtype = kType;
  static Tensor view(std::vector<T>& v) { return Tensor(v.data(), kType, {static_cast<dim_t>(v.size())}); }
};
using I32 = Element<std::int32_t, DType::kI32>;
using I64 = Element<std::int64_t, DType::kI64>;
using F32 = Element<float, DType::kF32>;
using F64 = Element<double, DType::kF64>;
using BF16 = Element<std::uint16_t, DType::kBF16>;  // moved, never summed

template <class E>
struct Moves : testing::Test {};
using Movable = testing::Types<I32, F32, F64, BF16>;
TYPED_TEST_SUITE(Moves, Movable);

template <class E>
struct Sums : testing::Test {};
using Summable = testing::Types<I32, I64, F32, F64>;
TYPED_TEST_SUITE(Sums, Summable);

void on_each_world(const std::function<void(Rank)>& body) {
  for (int ranks : {1, 2, 3, 4, 8}) EXPECT_EQ(failures(run_ranks(ranks, body)), "") << ranks << " ranks";
}

// Rank `from` sends `to` this many elements: uneven, some nothing.
dim_t piece(int from, int to, dim_t n) { return (from + 2 * to) % 3 == 0 ? 0 : n + from + 5 * to; }

TYPED_TEST(Moves, AllToAll) {
  using T = typename TypeParam::Type;
  on_each_world([](Rank r) {
    for (dim_t n : kCounts) {
      std::vector<std::vector<T>> out(r.size()), in(r.size());
      std::vector<Tensor> send(r.size()), recv(r.size());
      dim_t sent = 0;
      for (int p = 0; p < r.size(); ++p) {
        out[p] = inputs<T>(10 * r.rank() + p, piece(r.rank(), p, n));
        in[p].resize(piece(p, r.rank(), n));
        if (!out[p].empty()) send[p] = TypeParam::view(out[p]);
        if (!in[p].empty()) recv[p] = TypeParam::view(in[p]);
        if (p != r.rank()) sent += send[p].bytes();
      }
      const double before = r.ctx.trace.bytes_sent;
      r.comm.all_to_all(r.ctx, kStream, send, recv);
      CHECK(r.ctx.trace.bytes_sent - before == static_cast<double>(sent), "counted {}",
            r.ctx.trace.bytes_sent - before);
      for (int p = 0; p < r.size(); ++p)
        CHECK(in[p] == inputs<T>(10 * p + r.rank(), piece(p, r.rank(), n)), "from rank {}, {} elements", p,
              in[p].size());
    }
  });
}

TYPED_TEST(Moves, AllGather) {
  using T = typename TypeParam::Type;
  on_each_world([](Rank r) {
    for (dim_t n : kCounts) {
      std::vector<T> expected;
      for (int p = 0; p < r.size(); ++p)
        for (T v : inputs<T>(p, n)) expected.push_back(v);
      std::vector<T> shard = inputs<T>(r.rank(), n), full(n * r.size());
      r.comm.all_gather(r.ctx, kStream, TypeParam::view(full), TypeParam::view(shard));
      CHECK(full == expected, "{} elements", n);
      // In place.
      std::vector<T> whole(n * r.size());
      std::copy(shard.begin(), shard.end(), whole.begin() + n * r.rank());
      const Tensor all = TypeParam::view(whole);
      r.comm.all_gather(r.ctx, kStream, all, all.rows(n * r.rank(), n * (r.rank() + 1)));
      CHECK(whole == expected, "{} elements in place", n);
    }
  });
}

TYPED_TEST(Moves, Broadcast) {
  using T = typename TypeParam::Type;
  on_each_world([](Rank r) {
    for (dim_t n : kCounts)
      for (int root = 0; root < r.size(); ++root) {
        std::vector<T> data = inputs<T>(r.rank(), n);
        r.comm.broadcast(r.ctx, kStream, TypeParam::view(data), root);
        CHECK(data == inputs<T>(root, n), "{} elements from {}", n, root);
      }
  });
}

template <class T>
T rank_sum(int ranks, dim_t i) {
  T sum = input<T>(0, i);
  for (int p = 1; p < ranks; ++p) sum += input<T>(p, i);
  return sum;
}

TYPED_TEST(Sums, ReduceScatter) {
  using T = typename TypeParam::Type;
  on_each_world([](Rank r) {
    for (dim_t n : kCounts) {
      std::vector<T> full = inputs<T>(r.rank(), n * r.size()), shard(n), expected(n);
      for (dim_t i = 0; i < n; ++i) expected[i] = rank_sum<T>(r.size(), n * r.rank() + i);
      r.comm.reduce_scatter(r.ctx, kStream, TypeParam::view(shard), TypeParam::view(full));
      CHECK(shard == expected, "{} elements", n);
      CHECK(full == inputs<T>(r.rank(), n * r.size()), "the input was written");
      // In place.
      const Tensor all = TypeParam::view(full);
      r.comm.reduce_scatter(r.ctx, kStream, all.rows(n * r.rank(), n * (r.rank() + 1)), all);
      CHECK(std::equal(expected.begin(), expected.end(), full.begin() + n * r.rank()), "{} elements in place", n);
    }
  });
}

TYPED_TEST(Sums, AllReduce) {
  using T = typename TypeParam::Type;
  on_each_world([](Rank r) {
    for (dim_t n : kCounts) {
      std::vector<T> sum = inputs<T>(r.rank(), n), most = sum;
      r.comm.all_reduce(r.ctx, kStream, TypeParam::view(sum));
      r.comm.all_reduce(r.ctx, kStream, TypeParam::view(most), Reduce::kMax);
      for (dim_t i = 0; i < n; ++i) {
        CHECK(sum[i] == rank_sum<T>(r.size(), i), "sum, element {} of {}", i, n);
        T expected = input<T>(0, i);
        for (int p = 1; p < r.size(); ++p) expected = std::max(expected, input<T>(p, i));
        CHECK(most[i] == expected, "max, element {} of {}", i, n);
      }
    }
  });
}

// A number that is not finite must not be lost on the way to the check for it, whichever rank has it.
TEST(Collectives, NaNWinsTheMaximum) {
  on_each_world([](Rank r) {
    for (int bad = 0; bad < r.size(); ++bad) {
      std::vector<float> v{r.rank() == bad ? std::numeric_limits<float>::quiet_NaN() : 3.0f, 1.0f};
      r.comm.all_reduce(r.ctx, kStream, F32::view(v), Reduce::kMax);
      CHECK(std::isnan(v[0]) && v[1] == 1, "{} {}", v[0], v[1]);
    }
  });
}

TEST(Collectives, BarrierSeparates) {
  for (int ranks : {2, 3, 8}) {
    std::vector<int> written(ranks, 0);
    EXPECT_EQ(failures(run_ranks(ranks,
                                 [&](Rank r) {
                                   for (int round = 1; round <= 20; ++round) {
                                     written[r.rank()] = round;
                                     r.comm.barrier(r.ctx);
                                     for (int w : written) CHECK(w == round, "{} in round {}", w, round);
                                     r.comm.barrier(r.ctx);
                                   }
                                 })),
              "");
  }
}

// A collective on a copy stream comes after the copies that the stream still holds back.
TEST(Collectives, KeepTheOrderOfTheirStream) {
  on_each_world([](Rank r) {
    std::vector<float> source{static_cast<float>(r.rank())}, shard{-1}, full(r.size(), -1);
    r.ctx.device.copy(StreamKind::kToDevice, F32::view(shard), F32::view(source));
    r.comm.all_gather(r.ctx, StreamKind::kToDevice, F32::view(full), F32::view(shard));
    r.ctx.device.order(StreamKind::kToDevice, StreamKind::kCompute);
    for (int p = 0; p < r.size(); ++p) CHECK(full[p] == static_cast<float>(p), "rank {}'s part is {}", p, full[p]);
  });
}

// Tensors of any shape, as long as they are contiguous.
TEST(Collectives, ShapesDoNotMatter) {
  on_each_world([](Rank r) {
    std::vector<float> shard = inputs<float>(r.rank(), 6), full(6 * r.size());
    r.comm.all_gather(r.ctx, kStream, F32::view(full).reshape({r.size() * 2, 3}), F32::view(shard).reshape({3, 2}));
    for (int p = 0; p < r.size(); ++p) CHECK(full[6 * p + 5] == input<float>(p, 5), "part {}", p);
  });
}

// ---- the group of one, and plans

struct OneRank : testing::Test {
  RankMemory memory{make_cpu_device({.lazy_copies = true}), 4096, 4096};
  Ctx& ctx = memory.ctx();
  std::unique_ptr<Communicator> self = make_self_communicator();
  std::vector<float> a = inputs<float>(3, 10), b = std::vector<float>(10);
  Tensor ta = F32::view(a), tb = F32::view(b);
};

TEST_F(OneRank, SelfCopies) {
  self->all_gather(ctx, kStream, tb, ta);
  EXPECT_EQ(b, a);
  b.assign(10, 0);
  self->reduce_scatter(ctx, kStream, tb, ta);
  EXPECT_EQ(b, a);
  b.assign(10, 0);
  self->all_to_all(ctx, kStream, {&ta, 1}, {&tb, 1});
  EXPECT_EQ(b, a);
  self->all_reduce(ctx, kStream, ta);
  self->broadcast(ctx, kStream, ta, 0);
  self->barrier(ctx);
  EXPECT_EQ(b, a);
  self->all_gather(ctx, kStream, ta, ta);  // in place
  const Tensor none;
  self->all_to_all(ctx, kStream, {&none, 1}, {&none, 1});
  EXPECT_EQ(ctx.trace.bytes_sent, 0);
}

TEST_F(OneRank, SelfCopiesAreOrderedByTheirStream) {
  b.assign(10, 0);
  self->all_gather(ctx, StreamKind::kToDevice, tb, ta);
  EXPECT_EQ(b[0], 0);
  ctx.device.order(StreamKind::kToDevice, StreamKind::kCompute);
  EXPECT_EQ(b, a);
}

// The front half says what is wrong with a call, on every backend: it is tried here on the group of one and on a plan of four.
TEST_F(OneRank, WrongCallsAreNamed) {
  std::vector<std::uint16_t> half(10);
  auto message = [](const std::function<void()>& call) {
    try {
      call();
    } catch (const InternalError& error) {
      return std::string(error.what());
    }
    return std::string("nothing was thrown");
  };
  auto expect = [](const std::string& text, const char* part) {
    EXPECT_NE(text.find(part), std::string::npos) << text << "\n does not contain: " << part;
  };
  const Tensor strided = Tensor(a.data(), DType::kF32, {5, 2}).slice(1, {0, 1});
  expect(message([&] { self->all_gather(ctx, kStream, tb.rows(0, 9), ta); }),
         "full fp32[9] is not 1 times the shard fp32[10]");
  expect(message([&] { self->all_gather(ctx, kStream, BF16::view(half), ta); }), "full is bf16[10], shard is fp32[10]");
  expect(message([&] { self->all_gather(ctx, kStream, tb.rows(0, 5), strided); }),
         "shard fp32[5, 1] is a strided view");
  expect(message([&] { self->all_gather(ctx, kStream, tb, {}); }), "shard is undefined");
  expect(message([&] { self->all_gather(ctx, kStream, ta.rows(1, 10), ta.rows(0, 9)); }),
         "shard fp32[9] overlaps full fp32[9] but is not its part 0");
  expect(message([&] { self->all_reduce(ctx, kStream, BF16::view(half)); }), "all_reduce of bf16[10]: only fp32");
  expect(message([&] { self->reduce_scatter(ctx, kStream, BF16::view(half), BF16::view(half)); }),
         "reduce_scatter of bf16[10]: only fp32");
  expect(message([&] { self->broadcast(ctx, kStream, ta, 1); }), "broadcast from rank 1 of 1");
  const Tensor early = ta.rows(0, 6), late = ta.rows(5, 10), other = tb.rows(0, 5);
  expect(message([&] { self->all_to_all(ctx, kStream, {&early, 1}, {&late, 1}); }), "overlaps a receive");
  expect(message([&] {
           self->all_to_all(ctx, kStream, {&early, 1}, {&other, 1});
         }),
         "rank 0 sends itself fp32[6], but receives fp32[5]");
  expect(message([&] { self->all_to_all(ctx, kStream, {}, {}); }), "0 sends and 0 receives among 1 ranks");
  auto plan = make_meta_communicator(2, 4);
  expect(message([&] { plan->all_gather(ctx, kStream, tb, ta.rows(0, 3)); }),
         "full fp32[10] is not 4 times the shard fp32[3]");
  expect(message([&] { plan->barrier(ctx); }), "the communicator of a plan was called on a real device");
  expect(message([] { make_meta_communicator(4, 4); }), "rank 4 of 4");
}

// What a plan counts is what a run counts.
TEST(Collectives, PlanAndRunCountTheSame) {
  auto program = [](Ctx& ctx, Communicator& comm) {
    const int size = comm.size();
    Buffer full = ctx.memory.take("full", Category::kTiles, DType::kF32, {40 * size});
    Buffer shard = ctx.memory.take("shard", Category::kTiles, DType::kF32, {40});
    const Tensor f = full.tensor(DType::kF32, {40 * size}), s = shard.tensor(DType::kF32, {40});
    comm.all_gather(ctx, kStream, f, s);
    comm.reduce_scatter(ctx, kStream, s, f);
    comm.all_reduce(ctx, kStream, f);
    comm.broadcast(ctx, kStream, s, 1);
    comm.barrier(ctx);
    Buffer other = ctx.memory.take("other", Category::kTiles, DType::kF32, {40 * size});
    std::vector<Tensor> send, recv;
    for (int p = 0; p < size; ++p) {
      send.push_back(f.rows(40 * p, 40 * (p + 1)));
      recv.push_back(other.tensor(DType::kF32, {40 * size}).rows(40 * p, 40 * (p + 1)));
    }
    comm.all_to_all(ctx, kStream, send, recv);
  };
  std::vector<Trace> ran(4);
  ASSERT_EQ(failures(run_ranks(4,
                               [&](Rank r) {
                                 program(r.ctx, r.comm);
                                 ran[r.rank()] = r.ctx.trace;
                               })),
            "");
  for (int rank = 0; rank < 4; ++rank) {
    RankMemory memory(make_meta_device(Backend::kCpu, 1), -1, -1);
    auto comm = make_meta_communicator(rank, 4);
    program(memory.ctx(), *comm);
    EXPECT_EQ(memory.ctx().trace.bytes_sent, ran[rank].bytes_sent);
    EXPECT_EQ(memory.ctx().trace.ops, ran[rank].ops);
    // gather and scatter 3 shards of 160 bytes each; reduce 2 * 3/4 of 640; all-to-all 3 pieces; the root 3 shards more
    EXPECT_EQ(ran[rank].bytes_sent, 480 + 480 + 960 + 480 + (rank == 1 ? 480 : 0));
  }
}

}  // namespace
}  // namespace untied::test
