// One rank of a plan. The front half has checked and counted; there is no one to exchange with.
#include "comm/communicator.h"

namespace untied {
namespace {

class MetaCommunicator final : public Communicator {
 public:
  MetaCommunicator(int rank, int size) : Communicator(rank, size) {}
  void abort(const std::string&) override {}

 private:
  [[noreturn]] static void refuse() { throw InternalError("the communicator of a plan was called on a real device"); }
  void do_all_to_all(Ctx&, StreamKind, std::span<const Tensor>, std::span<const Tensor>) override { refuse(); }
  void do_all_gather(Ctx&, StreamKind, const Tensor&, const Tensor&) override { refuse(); }
  void do_reduce_scatter(Ctx&, StreamKind, const Tensor&, const Tensor&) override { refuse(); }
  void do_all_reduce(Ctx&, StreamKind, const Tensor&, Reduce) override { refuse(); }
  void do_broadcast(Ctx&, StreamKind, const Tensor&, int) override { refuse(); }
  void do_barrier(Ctx&) override { refuse(); }
};

}  // namespace

std::unique_ptr<Communicator> make_meta_communicator(int rank, int size) {
  return std::make_unique<MetaCommunicator>(rank, size);
}

}  // namespace untied
