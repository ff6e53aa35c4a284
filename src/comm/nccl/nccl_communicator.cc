// Ranks on the GPUs of one process, one thread each, over NCCL.
//
// Communicators are non-blocking: a call returns at once and is asked until its work is queued. So a rank never sits in the
// library where an abort could not reach it: neither while it connects to a peer that has failed, nor on the GPU, where
// ncclCommAbort ends kernels that wait for a peer. Barriers, and the cause of a failure, go through host memory.
#include <nccl.h>

#include <chrono>
#include <functional>
#include <mutex>
#include <thread>

#include "comm/nccl.h"
#include "comm/rendezvous.h"
#include "device/cuda/check.h"
#include "device/cuda/stream.h"

namespace untied {
namespace {

constexpr int kOldest = NCCL_VERSION(2, 18, 0);  // ncclConfig_t as it is filled below

std::string version_text(int version) {
  return format("{}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

int nccl_version() {
  int version = 0;
  ncclGetVersion(&version);
  return version;
}

[[noreturn]] void fail(ncclResult_t result, const char* op, int rank, ncclComm_t comm) {
  const std::string detail = comm ? ncclGetLastError(comm) : "";
  std::size_t free = 0, total = 0;
  constexpr std::size_t kLittle = std::size_t{64} << 20;
  if (result == ncclUnhandledCudaError && cudaMemGetInfo(&free, &total) == cudaSuccess && free < kLittle)
    throw OutOfMemoryError(
        "NCCL finds too little device memory for its buffers on rank {}: {} of {} are free; give a "
        "smaller --device-memory",
        rank, format_bytes(static_cast<double>(free)), format_bytes(static_cast<double>(total)));
  throw DeviceError("NCCL {}, rank {}: {}: {}{}{}", version_text(nccl_version()), rank, op, ncclGetErrorString(result),
                    detail.empty() ? "" : "; ", detail);
}

ncclDataType_t type_of(DType dtype) {
  switch (dtype) {
    case DType::kF32: return ncclFloat32;
    case DType::kF64: return ncclFloat64;
    case DType::kI32: return ncclInt32;
    case DType::kI64: return ncclInt64;
    default: throw InternalError("reduction of {}", name_of(dtype));
  }
}

std::size_t bytes_of(const Tensor& t) { return static_cast<std::size_t>(t.bytes()); }
std::size_t count_of(const Tensor& t) { return static_cast<std::size_t>(t.size()); }

class NcclCommunicator;

// What the ranks share.
class Group {
 public:
  explicit Group(int size) : host(size), members_(static_cast<std::size_t>(size)) {}

  Rendezvous host;  // barriers, and why the group has failed

  void join(int rank, NcclCommunicator* member) {
    std::lock_guard lock(mutex_);
    members_[static_cast<std::size_t>(rank)] = member;
  }
  // How the ranks' communicators for a stream find each other: the first to ask makes it.
  ncclUniqueId id(StreamKind stream) {
    std::lock_guard lock(mutex_);
    auto& id = ids_[static_cast<int>(stream)];
    if (!id) {
      id.emplace();
      if (const ncclResult_t result = ncclGetUniqueId(&*id); result != ncclSuccess)
        fail(result, "ncclGetUniqueId", 0, nullptr);
    }
    return *id;
  }
  void abort_all();

 private:
  std::mutex mutex_;
  std::vector<NcclCommunicator*> members_;
  std::array<std::optional<ncclUniqueId>, kNumStreams> ids_;
};

class NcclCommunicator final : public Communicator {
 public:
  NcclCommunicator(int rank, std::shared_ptr<Group> group)
      : Communicator(rank, group->host.size()), group_(std::move(group)) {
    group_->join(rank, this);
  }
  ~NcclCommunicator() override {
    group_->join(rank(), nullptr);
    group_->host.fail(rank(), "left the group while others still communicate");
    for (Channel& channel : channels_) close(channel);
  }

  void abort(const std::string& cause) override {
    group_->host.fail(rank(), cause);
    group_->abort_all();
  }
  void check() const override { group_->host.check("the step"); }

  // From any thread: no call after this one, and what is to be aborted.
  void give_up(std::vector<ncclComm_t>& to_abort) {
    for (Channel& channel : channels_) {
      std::lock_guard lock(channel.mutex);
      channel.aborted = true;
      if (channel.comm) to_abort.push_back(std::exchange(channel.comm, nullptr));
    }
  }

 private:
  // NCCL's communicator for one stream. The mutex is never held while anything waits.
  struct Channel {
    std::mutex mutex;
    ncclComm_t comm = nullptr;
    bool aborted = false;
    int gpu = -1;
  };

  void do_all_to_all(Ctx& ctx, StreamKind stream, std::span<const Tensor> send, std::span<const Tensor> recv) override {
    if (send[rank()].size() > 0 && send[rank()].raw() != recv[rank()].raw())
      ctx.device.copy(stream, recv[rank()].flat(), send[rank()].flat());
    run(ctx, stream, "all_to_all", [&](ncclComm_t comm, cudaStream_t s) {
      ncclResult_t result = ncclGroupStart();
      const auto also = [&](ncclResult_t r) {
        if (result == ncclSuccess) result = r;
      };
      for (int i = 1; i < size(); ++i) {  // each rank begins at another peer
        const int to = (rank() + i) % size(), from = (rank() + size() - i) % size();
        if (send[to].size() > 0) also(ncclSend(send[to].raw(), bytes_of(send[to]), ncclUint8, to, comm, s));
        if (recv[from].size() > 0) also(ncclRecv(recv[from].raw(), bytes_of(recv[from]), ncclUint8, from, comm, s));
      }
      const ncclResult_t ended = ncclGroupEnd();
      return result == ncclSuccess || result == ncclInProgress ? ended : result;
    });
  }

  void do_all_gather(Ctx& ctx, StreamKind stream, const Tensor& full, const Tensor& shard) override {
    run(ctx, stream, "all_gather", [&](ncclComm_t comm, cudaStream_t s) {
      return ncclAllGather(shard.raw(), full.raw(), bytes_of(shard), ncclUint8, comm, s);
    });
  }

  void do_reduce_scatter(Ctx& ctx, StreamKind stream, const Tensor& shard, const Tensor& full) override {
    run(ctx, stream, "reduce_scatter", [&](ncclComm_t comm, cudaStream_t s) {
      return ncclReduceScatter(full.raw(), shard.raw(), count_of(shard), type_of(full.dtype()), ncclSum, comm, s);
    });
  }

  void do_all_reduce(Ctx& ctx, StreamKind stream, const Tensor& inout, Reduce reduce) override {
    run(ctx, stream, "all_reduce", [&](ncclComm_t comm, cudaStream_t s) {
      return ncclAllReduce(inout.raw(), inout.raw(), count_of(inout), type_of(inout.dtype()),
                           reduce == Reduce::kSum ? ncclSum : ncclMax, comm, s);
    });
  }

  void do_broadcast(Ctx& ctx, StreamKind stream, const Tensor& inout, int root) override {
    run(ctx, stream, "broadcast", [&](ncclComm_t comm, cudaStream_t s) {
      return ncclBroadcast(inout.raw(), inout.raw(), bytes_of(inout), ncclUint8, root, comm, s);
    });
  }

  void do_barrier(Ctx& ctx) override {
    ctx.device.synchronize();
    group_->host.meet(rank(), {.op = "barrier"});
    group_->host.leave_together();
  }

  // Queues call(comm, stream) on the stream and returns when it is queued.
  void run(Ctx& ctx, StreamKind stream, const char* op,
           const std::function<ncclResult_t(ncclComm_t, cudaStream_t)>& call) {
    const cudaStream_t s = stream_of(ctx, stream);
    Channel& channel = channels_[static_cast<int>(stream)];
    if (channel.gpu < 0) connect(channel, stream, cuda_device(ctx.device).gpu());
    start(channel, op, [&] { return call(channel.comm, s); });
    finish(channel, op);
  }

  void connect(Channel& channel, StreamKind stream, int gpu) {
    const ncclUniqueId id = group_->id(stream);
    channel.gpu = gpu;
    start(channel, "connecting", [&] {
      ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
      config.blocking = 0;
      return ncclCommInitRankConfig(&channel.comm, size(), id, rank(), &config);
    });
    finish(channel, "connecting");
  }

  template <class Call>
  void start(Channel& channel, const char* op, Call&& call) {
    std::lock_guard lock(channel.mutex);
    if (channel.aborted) group_->host.check(op);
    const ncclResult_t result = call();
    if (result != ncclSuccess && result != ncclInProgress) fail(result, op, rank(), channel.comm);
  }
  // Asks until what was started is queued.
  void finish(Channel& channel, const char* op) {
    for (int asked = 0;; ++asked) {
      {
        std::lock_guard lock(channel.mutex);
        if (channel.aborted) group_->host.check(op);
        ncclResult_t state = ncclSuccess;
        if (const ncclResult_t result = ncclCommGetAsyncError(channel.comm, &state); result != ncclSuccess)
          fail(result, op, rank(), channel.comm);
        if (state == ncclSuccess) return;
        if (state != ncclInProgress) fail(state, op, rank(), channel.comm);
      }
      constexpr int kEager = 1000;  // queuing takes tens of microseconds, connecting seconds
      if (asked < kEager) std::this_thread::yield();
      else std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }

  // Behind the last collective of every rank. A library that does not let go is not waited for.
  void close(Channel& channel) {
    std::lock_guard lock(channel.mutex);
    if (!channel.comm) return;
    cudaSetDevice(channel.gpu);
    ncclResult_t state = ncclCommFinalize(channel.comm);
    for (int waited = 0; state == ncclInProgress && waited < 5000; ++waited) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      if (ncclCommGetAsyncError(channel.comm, &state) != ncclSuccess) break;
    }
    if (state == ncclSuccess) ncclCommDestroy(channel.comm);
    else ncclCommAbort(channel.comm);
    channel.comm = nullptr;
  }

  const std::shared_ptr<Group> group_;
  std::array<Channel, kNumStreams> channels_;
};

// Each in a thread of its own: an abort frees memory, for which CUDA waits until the GPU is idle, and kernels of the other
// communicators end only when those are aborted too.
void Group::abort_all() {
  std::vector<ncclComm_t> comms;
  {
    std::lock_guard lock(mutex_);
    for (NcclCommunicator* member : members_)
      if (member) member->give_up(comms);
  }
  std::vector<std::jthread> aborting;
  for (ncclComm_t comm : comms) aborting.emplace_back([comm] { ncclCommAbort(comm); });
}

}  // namespace

std::vector<std::unique_ptr<Communicator>> make_nccl_communicators(int size) {
  if (const int version = nccl_version(); version < kOldest)
    throw DeviceError("libnccl.so.2 is NCCL {}: {} or newer is wanted", version_text(version), version_text(kOldest));
  auto group = std::make_shared<Group>(size);
  std::vector<std::unique_ptr<Communicator>> ranks;
  for (int rank = 0; rank < size; ++rank) ranks.push_back(std::make_unique<NcclCommunicator>(rank, group));
  return ranks;
}

}  // namespace untied
