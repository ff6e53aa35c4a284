// Ranks that are threads of one process. Every rank copies or reduces its own part straight from the others' memory.
#include <algorithm>
#include <array>
#include <cstring>

#include "comm/rendezvous.h"

namespace untied {
namespace {

std::byte* at(const Tensor& t, dim_t byte) { return t.as<std::byte>() + byte; }

void copy_bytes(std::byte* dst, const std::byte* src, dim_t bytes) {
  if (bytes > 0 && dst != src) std::memcpy(dst, src, static_cast<std::size_t>(bytes));
}

struct Sum {
  template <class T>
  T operator()(T a, T b) const {
    return a + b;
  }
};
struct Max {
  template <class T>
  T operator()(T a, T b) const {
    return b > a || b != b ? b : a;
  }  // b != b: NaN
};

// dst = sources combined in their order. dst may be one of them: a block's sources are all read before it is written.
template <class T, class Combine>
void reduce_as(std::byte* dst, std::span<const std::byte* const> sources, dim_t n, Combine combine) {
  constexpr dim_t kBlock = 1024;
  std::array<T, kBlock> block;
  for (dim_t begin = 0; begin < n; begin += kBlock) {
    const dim_t length = std::min(kBlock, n - begin);
    std::copy_n(reinterpret_cast<const T*>(sources[0]) + begin, length, block.data());
    for (const std::byte* bytes : sources.subspan(1)) {
      const T* source = reinterpret_cast<const T*>(bytes) + begin;
      for (dim_t i = 0; i < length; ++i) block[i] = combine(block[i], source[i]);
    }
    std::copy_n(block.data(), length, reinterpret_cast<T*>(dst) + begin);
  }
}

template <class Combine>
void reduce_typed(DType dtype, std::byte* dst, std::span<const std::byte* const> sources, dim_t n, Combine combine) {
  switch (dtype) {
    case DType::kF32: return reduce_as<float>(dst, sources, n, combine);
    case DType::kF64: return reduce_as<double>(dst, sources, n, combine);
    case DType::kI32: return reduce_as<std::int32_t>(dst, sources, n, combine);
    case DType::kI64: return reduce_as<std::int64_t>(dst, sources, n, combine);
    default: throw InternalError("reduction of {}", name_of(dtype));
  }
}

class ThreadCommunicator final : public Communicator {
 public:
  ThreadCommunicator(int rank, std::shared_ptr<Rendezvous> group)
      : Communicator(rank, group->size()), group_(std::move(group)) {}
  ~ThreadCommunicator() override { group_->fail(rank(), "left the group while others still communicate"); }

  void abort(const std::string& cause) override { group_->fail(rank(), cause); }

 private:
  void do_all_to_all(Ctx& ctx, StreamKind stream, std::span<const Tensor> send, std::span<const Tensor> recv) override {
    meet(ctx, stream, {.op = "all_to_all", .send = send, .recv = recv});
    for (int i = 0; i < size(); ++i) {
      const int p =
          (rank() + i) % size();  // each rank begins at another, so they do not all read the same memory at once
      copy_bytes(at(recv[p], 0), at(group_->call(p).send[rank()], 0), recv[p].bytes());
    }
    group_->leave_together();
  }

  void do_all_gather(Ctx& ctx, StreamKind stream, const Tensor& full, const Tensor& shard) override {
    meet(ctx, stream, {.op = "all_gather", .tensor = shard});
    for (int i = 0; i < size(); ++i) {
      const int p = (rank() + i) % size();
      copy_bytes(at(full, p * shard.bytes()), at(group_->call(p).tensor, 0), shard.bytes());
    }
    group_->leave_together();
  }

  void do_reduce_scatter(Ctx& ctx, StreamKind stream, const Tensor& shard, const Tensor& full) override {
    meet(ctx, stream, {.op = "reduce_scatter", .tensor = full});
    reduce_typed(shard.dtype(), at(shard, 0), sources(rank() * shard.bytes()), shard.size(), Sum());
    group_->leave_together();
  }

  // Each rank reduces a part into its own tensor, where no other rank reads that part; then each copies the other parts.
  void do_all_reduce(Ctx& ctx, StreamKind stream, const Tensor& inout, Reduce reduce) override {
    meet(ctx, stream, {.op = "all_reduce", .tensor = inout, .reduce = reduce});
    // Bytes of rank r's part.
    auto part = [&](int r) {
      const dim_t element = static_cast<dim_t>(size_of(inout.dtype()));
      return Range{inout.size() * r / size() * element, inout.size() * (r + 1) / size() * element};
    };
    const Range mine = part(rank());
    const dim_t n = mine.size() / static_cast<dim_t>(size_of(inout.dtype()));
    if (reduce == Reduce::kSum) reduce_typed(inout.dtype(), at(inout, mine.begin), sources(mine.begin), n, Sum());
    else reduce_typed(inout.dtype(), at(inout, mine.begin), sources(mine.begin), n, Max());
    group_->step();
    for (int p = 0; p < size(); ++p)
      copy_bytes(at(inout, part(p).begin), at(group_->call(p).tensor, part(p).begin), part(p).size());
    group_->leave_together();
  }

  void do_broadcast(Ctx& ctx, StreamKind stream, const Tensor& inout, int root) override {
    meet(ctx, stream, {.op = "broadcast", .tensor = inout, .root = root});
    copy_bytes(at(inout, 0), at(group_->call(root).tensor, 0), inout.bytes());
    group_->leave_together();
  }

  void do_barrier(Ctx& ctx) override {
    meet(ctx, StreamKind::kCompute, {.op = "barrier"});
    group_->leave_together();
  }

  void meet(Ctx& ctx, StreamKind stream, const CollectiveCall& call) {
    ctx.device.order(stream, StreamKind::kCompute);  // copies that a copy stream still holds back come first
    group_->meet(rank(), call);
  }

  // Where each rank's tensor of the current call has its byte `offset`.
  std::vector<const std::byte*> sources(dim_t offset) const {
    std::vector<const std::byte*> pointers;
    for (int p = 0; p < size(); ++p) pointers.push_back(at(group_->call(p).tensor, offset));
    return pointers;
  }

  std::shared_ptr<Rendezvous> group_;
};

}  // namespace

std::vector<std::unique_ptr<Communicator>> make_thread_communicators(int size) {
  auto group = std::make_shared<Rendezvous>(size);
  std::vector<std::unique_ptr<Communicator>> ranks;
  for (int rank = 0; rank < size; ++rank) ranks.push_back(std::make_unique<ThreadCommunicator>(rank, group));
  return ranks;
}

}  // namespace untied
