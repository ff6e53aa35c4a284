// Collectives among the ranks of one group, over tensor views: element type and count travel together.
// Public calls check and count, then run on a stream of the context's device; ordering with other streams is the caller's,
// by Event. All ranks call the same collectives in the same order. All views are contiguous; their shapes do not matter.
//
// Counted as sent is what leaves this rank when every pair of ranks talks directly: a ring sends as much in total.
//
// A rank that fails calls abort(cause); every other rank's next or current collective then throws DeviceError with that cause.
// A rank that destroys its communicator has left: whoever calls a collective after that gets the same error. (On GPUs a rank
// leaves behind the last collective: what is queued there and waits for a rank that has left ends only by an abort.)
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "memory/context.h"

namespace untied {

enum class Reduce : std::uint8_t { kSum, kMax };

class Communicator {
 public:
  virtual ~Communicator() = default;
  int rank() const { return rank_; }
  int size() const { return size_; }

  // send[p] goes to rank p, recv[p] comes from rank p: views, possibly empty (undefined); send[p] here has the size and type of
  // recv[me] at p. send[me] is copied to recv[me]. No send overlaps a receive.        sent: every send[p] but send[me]
  void all_to_all(Ctx& ctx, StreamKind stream, std::span<const Tensor> send, std::span<const Tensor> recv);
  // full [size * n] = every rank's shard [n], in rank order. shard may be its own place in full.      sent: (size - 1) shards
  void all_gather(Ctx& ctx, StreamKind stream, const Tensor& full, const Tensor& shard);
  // shard [n] = sum over ranks (in rank order, in the type of the elements) of their full [size * n], part `rank`; fp32, fp64,
  // int32 or int64. shard may be its own place in full; full is not written otherwise.                sent: (size - 1) shards
  void reduce_scatter(Ctx& ctx, StreamKind stream, const Tensor& shard, const Tensor& full);
  // fp32, fp64, int32 or int64, in place; sums in rank order, so every rank gets the same bits. A NaN wins kMax.
  // sent: as reduce_scatter and all_gather of 1 / size of the elements, 2 (size - 1) / size
  void all_reduce(Ctx& ctx, StreamKind stream, const Tensor& inout, Reduce reduce = Reduce::kSum);
  // sent: (size - 1) times the tensor, by the root alone
  void broadcast(Ctx& ctx, StreamKind stream, const Tensor& inout, int root);
  void barrier(Ctx& ctx);

  // From any thread. The first cause stands. Collectives that are queued end at once, with anything in what they write: who
  // waits for a stream asks check() before using it.
  virtual void abort(const std::string& cause) = 0;
  // Throws DeviceError with the cause when the group has failed.
  virtual void check() const {}

 protected:
  Communicator(int rank, int size);
  Communicator(const Communicator&) = delete;
  // Behind the checks; never called on meta.
  virtual void do_all_to_all(Ctx& ctx, StreamKind stream, std::span<const Tensor> send,
                             std::span<const Tensor> recv) = 0;
  virtual void do_all_gather(Ctx& ctx, StreamKind stream, const Tensor& full, const Tensor& shard) = 0;
  virtual void do_reduce_scatter(Ctx& ctx, StreamKind stream, const Tensor& shard, const Tensor& full) = 0;
  virtual void do_all_reduce(Ctx& ctx, StreamKind stream, const Tensor& inout, Reduce reduce) = 0;
  virtual void do_broadcast(Ctx& ctx, StreamKind stream, const Tensor& inout, int root) = 0;
  virtual void do_barrier(Ctx& ctx) = 0;

 private:
  int rank_, size_;
};

// A group of one: copies.
std::unique_ptr<Communicator> make_self_communicator();

// Rank `rank` of `size` that exchanges nothing: for plans, on the meta device. Checks and counts like the others.
std::unique_ptr<Communicator> make_meta_communicator(int rank, int size);

// `size` communicators for the threads of this process, one per rank. Each thread owns its own, so that it leaves the group
// however it ends.
std::vector<std::unique_ptr<Communicator>> make_thread_communicators(int size);

}  // namespace untied
