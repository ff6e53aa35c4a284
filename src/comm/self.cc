// A group of one: what others send and sum is this rank's own, so every collective is a copy or nothing.
#include "comm/communicator.h"

namespace untied {
namespace {

class SelfCommunicator final : public Communicator {
 public:
  SelfCommunicator() : Communicator(0, 1) {}
  void abort(const std::string&) override {}  // nobody else waits

 private:
  void do_all_to_all(Ctx& ctx, StreamKind stream, std::span<const Tensor> send, std::span<const Tensor> recv) override {
    copy_flat(ctx, stream, recv[0], send[0]);
  }
  void do_all_gather(Ctx& ctx, StreamKind stream, const Tensor& full, const Tensor& shard) override {
    copy_flat(ctx, stream, full, shard);
  }
  void do_reduce_scatter(Ctx& ctx, StreamKind stream, const Tensor& shard, const Tensor& full) override {
    copy_flat(ctx, stream, shard, full);
  }
  void do_all_reduce(Ctx&, StreamKind, const Tensor&, Reduce) override {}
  void do_broadcast(Ctx&, StreamKind, const Tensor&, int) override {}
  void do_barrier(Ctx&) override {}

  static void copy_flat(Ctx& ctx, StreamKind stream, const Tensor& dst, const Tensor& src) {
    if (src.size() > 0 && dst.raw() != src.raw()) ctx.device.copy(stream, dst.flat(), src.flat());
  }
};

}  // namespace

std::unique_ptr<Communicator> make_self_communicator() { return std::make_unique<SelfCommunicator>(); }

}  // namespace untied
