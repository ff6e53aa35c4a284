// The front half of every collective: what is wrong with a call is said here, on every backend alike, and what it sends is
// counted. On meta that is all.
#include "comm/communicator.h"

namespace untied {
namespace {

bool overlap(const Tensor& a, const Tensor& b) {
  if (a.size() == 0 || b.size() == 0) return false;
  const std::byte *x = a.as<std::byte>(), *y = b.as<std::byte>();
  return x < y + b.bytes() && y < x + a.bytes();
}

void check_view(const char* op, const char* name, const Tensor& t) {
  CHECK(t.defined(), "{}: {} is undefined", op, name);
  CHECK(t.size() == 0 || t.is_contiguous(), "{}: {} {} is a strided view", op, name, t.str());
}

void check_reducible(const char* op, const Tensor& t) {
  CHECK(t.dtype() == DType::kF32 || t.dtype() == DType::kF64 || t.dtype() == DType::kI32 || t.dtype() == DType::kI64,
        "{} of {}: only fp32, fp64, int32 and int64 are summed between ranks", op, t.str());
}

// `full` holds `size` shards; `shard` is outside it or exactly at its own place.
void check_shard(const char* op, const Tensor& full, const Tensor& shard, int rank, int size) {
  check_view(op, "full", full);
  check_view(op, "shard", shard);
  CHECK(full.dtype() == shard.dtype(), "{}: full is {}, shard is {}", op, full.str(), shard.str());
  CHECK(full.size() == shard.size() * size, "{}: full {} is not {} times the shard {}", op, full.str(), size,
        shard.str());
  CHECK(!overlap(full, shard) || shard.as<std::byte>() == full.as<std::byte>() + rank * shard.bytes(),
        "{}: shard {} overlaps full {} but is not its part {}", op, shard.str(), full.str(), rank);
}

void count(Ctx& ctx, double bytes) {
  ctx.trace.bytes_sent += bytes;
  ++ctx.trace.ops;
}

}  // namespace

Communicator::Communicator(int rank, int size) : rank_(rank), size_(size) {
  CHECK(size >= 1 && rank >= 0 && rank < size, "rank {} of {}", rank, size);
}

void Communicator::all_to_all(Ctx& ctx, StreamKind stream, std::span<const Tensor> send, std::span<const Tensor> recv) {
  CHECK(std::ssize(send) == size_ && std::ssize(recv) == size_, "all_to_all: {} sends and {} receives among {} ranks",
        send.size(), recv.size(), size_);
  dim_t sent = 0;
  for (int p = 0; p < size_; ++p) {
    if (send[p].defined()) check_view("all_to_all", "send", send[p]);
    if (recv[p].defined()) check_view("all_to_all", "recv", recv[p]);
    if (p != rank_) sent += send[p].bytes();
    for (const Tensor& r : recv)
      CHECK(!overlap(send[p], r), "all_to_all: what goes to rank {}, {}, overlaps a receive of {}", p, send[p].str(),
            r.str());
  }
  const Tensor &from = send[rank_], &to = recv[rank_];
  CHECK(from.size() == to.size() && (from.size() == 0 || from.dtype() == to.dtype()),
        "all_to_all: rank {} sends itself {}, but receives {}", rank_, from.str(), to.str());
  count(ctx, static_cast<double>(sent));
  if (ctx.is_meta()) return;
  const OpTimer timer(ctx, "all_to_all", stream);
  do_all_to_all(ctx, stream, send, recv);
}

void Communicator::all_gather(Ctx& ctx, StreamKind stream, const Tensor& full, const Tensor& shard) {
  check_shard("all_gather", full, shard, rank_, size_);
  count(ctx, static_cast<double>(shard.bytes()) * (size_ - 1));
  if (ctx.is_meta()) return;
  const OpTimer timer(ctx, "all_gather", stream);
  do_all_gather(ctx, stream, full, shard);
}

void Communicator::reduce_scatter(Ctx& ctx, StreamKind stream, const Tensor& shard, const Tensor& full) {
  check_shard("reduce_scatter", full, shard, rank_, size_);
  check_reducible("reduce_scatter", full);
  count(ctx, static_cast<double>(shard.bytes()) * (size_ - 1));
  if (ctx.is_meta()) return;
  const OpTimer timer(ctx, "reduce_scatter", stream);
  do_reduce_scatter(ctx, stream, shard, full);
}

void Communicator::all_reduce(Ctx& ctx, StreamKind stream, const Tensor& inout, Reduce reduce) {
  check_view("all_reduce", "inout", inout);
  check_reducible("all_reduce", inout);
  count(ctx, 2.0 * static_cast<double>(inout.bytes()) * (size_ - 1) / size_);
  if (ctx.is_meta()) return;
  const OpTimer timer(ctx, "all_reduce", stream);
  do_all_reduce(ctx, stream, inout, reduce);
}

void Communicator::broadcast(Ctx& ctx, StreamKind stream, const Tensor& inout, int root) {
  check_view("broadcast", "inout", inout);
  CHECK(root >= 0 && root < size_, "broadcast from rank {} of {}", root, size_);
  count(ctx, rank_ == root ? static_cast<double>(inout.bytes()) * (size_ - 1) : 0);
  if (ctx.is_meta()) return;
  const OpTimer timer(ctx, "broadcast", stream);
  do_broadcast(ctx, stream, inout, root);
}

void Communicator::barrier(Ctx& ctx) {
  count(ctx, 0);
  if (!ctx.is_meta()) do_barrier(ctx);
}

}  // namespace untied
