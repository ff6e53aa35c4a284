// The collectives over NCCL on the GPUs that are here: values, order between streams, and what a failing rank does to the rest.
#ifdef UNTIED_HAS_CUDA

#include <gtest/gtest.h>

#include <chrono>

#include "device/cuda.h"
#include "memory/context.h"
#include "train/local_ranks.h"

namespace untied::test {
namespace {

constexpr dim_t kMiB = dim_t{1} << 20;

int gpus() { return std::min(8, cuda_device_count()); }

// A rank with memory and helpers that go through pinned memory.
struct GpuRank {
  RankMemory memory;
  std::shared_ptr<Communicator> comm;
  std::vector<Buffer> buffers;

  Ctx& ctx() { return memory.ctx(); }
  int rank() const { return comm->rank(); }
  int size() const { return comm->size(); }

  Tensor make(DType dtype, dim_t n) {
    buffers.push_back(ctx().memory.take("test", Category::kTiles, dtype, {n}));
    return buffers.back().tensor(dtype, {n});
  }
  template <class T>
  Tensor put(DType dtype, const std::vector<T>& values) {
    const Tensor t = make(dtype, static_cast<dim_t>(values.size()));
    if (!values.empty()) {
      ctx().device.copy(StreamKind::kToDevice, t, host(values, dtype));
      ctx().device.synchronize();
    }
    return t;
  }
  template <class T>
  std::vector<T> get(const Tensor& t) {
    std::vector<T> values(static_cast<std::size_t>(t.size()));
    ctx().device.synchronize();
    comm->check();
    if (!values.empty()) ctx().device.copy(StreamKind::kToHost, host(values, t.dtype()), t);
    ctx().device.synchronize();
    return values;
  }
  template <class T>
  static Tensor host(const std::vector<T>& values, DType dtype) {
    return Tensor(const_cast<T*>(values.data()), dtype, {static_cast<dim_t>(values.size())});
  }
};

void on_gpus(const std::function<void(GpuRank&)>& body, int ranks = gpus()) {
  run_local_ranks<GpuRank>(
      Backend::kCuda, ranks,
      [](std::shared_ptr<Communicator> comm) {
        const int rank = comm->rank();
        return std::unique_ptr<GpuRank>(
            new GpuRank{{make_local_device(Backend::kCuda, rank, 1), 512 * kMiB, kMiB}, std::move(comm), {}});
      },
      body);
}

// Small whole numbers: their fp32 sums are exact in any order.
float value(int rank, dim_t i) { return static_cast<float>((rank + 1) * (i % 1000 + 1)); }
std::vector<float> values(int rank, dim_t n) {
  std::vector<float> v(static_cast<std::size_t>(n));
  for (dim_t i = 0; i < n; ++i) v[static_cast<std::size_t>(i)] = value(rank, i);
  return v;
}
std::vector<float> summed(int ranks, dim_t begin, dim_t end) {
  std::vector<float> v;
  for (dim_t i = begin; i < end; ++i) v.push_back(static_cast<float>(ranks * (ranks + 1) / 2) * value(0, i));
  return v;
}

#define NEEDS_TWO_GPUS \
  if (gpus() < 2) GTEST_SKIP() << "needs two GPUs, there are " << cuda_device_count()

const dim_t kCounts[] = {1, 3, 1023, 1025, 300'001};

TEST(CudaCollectives, AllToAllOfUnevenParts) {
  NEEDS_TWO_GPUS;
  on_gpus([](GpuRank& r) {
    // Of rank `from` to rank `to`; some send nothing.
    const auto piece = [](int from, int to, dim_t n) { return (from + 2 * to) % 3 == 0 ? 0 : n + from + 5 * to; };
    for (dim_t n : kCounts) {
      std::vector<Tensor> send(r.size()), recv(r.size());
      for (int p = 0; p < r.size(); ++p) {
        if (dim_t m = piece(r.rank(), p, n)) send[p] = r.put(DType::kF32, values(10 * r.rank() + p, m));
        if (dim_t m = piece(p, r.rank(), n)) recv[p] = r.make(DType::kF32, m);
      }
      r.comm->all_to_all(r.ctx(), StreamKind::kCompute, send, recv);
      for (int p = 0; p < r.size(); ++p) {
        if (recv[p].defined()) {
          EXPECT_EQ(r.get<float>(recv[p]), values(10 * p + r.rank(), piece(p, r.rank(), n)));
        }
      }
    }
  });
}

TEST(CudaCollectives, GatherScatterReduceBroadcast) {
  NEEDS_TWO_GPUS;
  on_gpus([](GpuRank& r) {
    const int W = r.size();
    for (dim_t n : kCounts) {
      std::vector<float> expected;
      for (int p = 0; p < W; ++p)
        for (float v : values(p, n)) expected.push_back(v);

      const Tensor shard = r.put(DType::kF32, values(r.rank(), n)), full = r.make(DType::kF32, n * W);
      r.comm->all_gather(r.ctx(), StreamKind::kComm, full, shard);
      EXPECT_EQ(r.get<float>(full), expected);
      // In its own place.
      const Tensor own = full.rows(n * r.rank(), n * (r.rank() + 1));
      r.comm->all_gather(r.ctx(), StreamKind::kComm, full, own);
      EXPECT_EQ(r.get<float>(full), expected);

      const Tensor all = r.put(DType::kF32, values(r.rank(), n * W));
      r.comm->reduce_scatter(r.ctx(), StreamKind::kComm, shard, all);
      EXPECT_EQ(r.get<float>(shard), summed(W, n * r.rank(), n * (r.rank() + 1)));
      r.comm->all_reduce(r.ctx(), StreamKind::kComm, all);
      EXPECT_EQ(r.get<float>(all), summed(W, 0, n * W));

      const Tensor most = r.put(DType::kF64, std::vector<double>{1.5 * r.rank(), -r.rank() - 1.0});
      r.comm->all_reduce(r.ctx(), StreamKind::kCompute, most, Reduce::kMax);
      EXPECT_EQ(r.get<double>(most), (std::vector<double>{1.5 * (W - 1), -1.0}));

      for (int root = 0; root < W; ++root) {
        const Tensor t = r.put(DType::kF32, values(r.rank(), n));
        r.comm->broadcast(r.ctx(), StreamKind::kComm, t, root);
        EXPECT_EQ(r.get<float>(t), values(root, n));
      }
      r.comm->barrier(r.ctx());
      r.buffers.clear();
    }
  });
}

// Exchanges on the compute stream beside reductions on the communication stream, many in flight, as a step has them.
TEST(CudaCollectives, CollectivesOnTwoStreamsAtOnce) {
  NEEDS_TWO_GPUS;
  on_gpus([](GpuRank& r) {
    const int W = r.size();
    const dim_t n = 100'000;
    std::vector<Tensor> send(W), recv(W);
    for (int p = 0; p < W; ++p) {
      send[p] = r.put(DType::kF32, values(10 * r.rank() + p, n));
      recv[p] = r.make(DType::kF32, n);
    }
    const Tensor shard = r.make(DType::kF32, n), all = r.put(DType::kF32, values(r.rank(), n * W));
    for (int i = 0; i < 100; ++i) {
      r.comm->reduce_scatter(r.ctx(), StreamKind::kComm, shard, all);
      r.comm->all_to_all(r.ctx(), StreamKind::kCompute, send, recv);
    }
    EXPECT_EQ(r.get<float>(shard), summed(W, n * r.rank(), n * (r.rank() + 1)));
    for (int p = 0; p < W; ++p) EXPECT_EQ(r.get<float>(recv[p]), values(10 * p + r.rank(), n));
  });
}

// The others wait on the GPU, on both streams, for a rank that never comes: its failure, with its cause, is what the group ends
// with, whichever rank it is.
TEST(CudaCollectives, AFailingRankEndsTheOthers) {
  NEEDS_TWO_GPUS;
  for (int failing = 0; failing < gpus(); ++failing) {
    const auto start = std::chrono::steady_clock::now();
    const int waiting = failing == 0 ? 1 : 0;
    std::string of_waiting_rank;
    try {
      on_gpus([&](GpuRank& r) {
        const Tensor t = r.put(DType::kF32, values(r.rank(), 1000)), u = r.put(DType::kF32, values(r.rank(), 1000));
        const auto reduce_both = [&] {
          r.comm->all_reduce(r.ctx(), StreamKind::kComm, t);
          r.comm->all_reduce(r.ctx(), StreamKind::kCompute, u);
        };
        reduce_both();  // connected by now
        r.ctx().device.synchronize();
        if (r.rank() == failing) {
          std::this_thread::sleep_for(std::chrono::milliseconds(300));
          throw RunError("a fault for the test");
        }
        reduce_both();
        try {
          r.get<float>(t);
        } catch (const DeviceError& error) {
          if (r.rank() == waiting) of_waiting_rank = error.what();
          throw;
        }
      });
      FAIL() << "it ended well";
    } catch (const Error& error) {
      EXPECT_STREQ(error.what(), "a fault for the test");
      EXPECT_EQ(error.code(), ExitCode::kFailure);
    }
    EXPECT_NE(of_waiting_rank.find(format("rank {}: a fault for the test", failing)), std::string::npos)
        << of_waiting_rank;
    EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(20));
  }
}

// The same before the ranks have ever spoken.
TEST(CudaCollectives, ARankThatFailsBeforeConnecting) {
  NEEDS_TWO_GPUS;
  const auto start = std::chrono::steady_clock::now();
  try {
    on_gpus([&](GpuRank& r) {
      if (r.rank() == 1) throw OutOfMemoryError("no memory, for the test");
      const Tensor t = r.put(DType::kF32, values(r.rank(), 1000));
      r.comm->all_reduce(r.ctx(), StreamKind::kComm, t);
      r.get<float>(t);
    });
    FAIL() << "it ended well";
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "no memory, for the test");
    EXPECT_EQ(error.code(), ExitCode::kOutOfMemory);
  }
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(20));
}

TEST(CudaCollectives, MoreRanksThanGpus) {
  if (gpus() == 0) GTEST_SKIP() << "no GPU";
  try {
    on_gpus([](GpuRank&) {}, cuda_device_count() + 1);
    FAIL() << "it ended well";
  } catch (const DeviceError& error) {
    EXPECT_NE(std::string(error.what()).find("GPUs wanted"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace untied::test

#endif
