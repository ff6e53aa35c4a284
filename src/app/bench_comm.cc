// `untied bench comm`: what leaves a rank per second in each collective, all ranks at once.
#include "app/bench.h"

namespace untied {
namespace {

// Each on the stream that a step runs it on.
class Collectives {
 public:
  // `bytes` go to each peer.
  Collectives(BenchRank& rank, dim_t bytes)
      : rank_(rank), world_(rank.world()), n_(bytes / 4),
        shape_(format("{} to a peer", format_bytes(static_cast<double>(bytes)))) {}

  void run() {
    all_to_all();
    all_gather();
    reduce_scatter();
    all_reduce();
  }

 private:
  void measure(const char* name, const std::function<void()>& call) {
    rank_.measure({.name = name,
                   .shape = shape_,
                   .work = &Trace::bytes_sent,
                   .limit = rank_.setup().limit(&HardwareLimits::peer_gbs)},
                  call);
  }
  Held normal(const char* name, dim_t parts) { return rank_.normal(name, DType::kF32, {parts * n_}); }

  void all_to_all() {
    const Held from = normal("from", world_.size()), to = normal("to", world_.size());
    std::vector<Tensor> send, recv;
    for (int p = 0; p < world_.size(); ++p) {
      // Nothing for the rank itself: the copy would take time and is not counted.
      const Range part{p * n_, p == world_.rank() ? p * n_ : (p + 1) * n_};
      send.push_back(part.empty() ? Tensor() : from.tensor.rows(part));
      recv.push_back(part.empty() ? Tensor() : to.tensor.rows(part));
    }
    measure("all to all", [&] { world_.all_to_all(rank_.ctx(), StreamKind::kCompute, send, recv); });
  }
  void all_gather() {
    const Held full = normal("full", world_.size()), shard = normal("shard", 1);
    measure("all gather", [&] { world_.all_gather(rank_.ctx(), StreamKind::kComm, full.tensor, shard.tensor); });
  }
  void reduce_scatter() {
    const Held full = normal("full", world_.size()), shard = normal("shard", 1);
    measure("reduce scatter",
            [&] { world_.reduce_scatter(rank_.ctx(), StreamKind::kComm, shard.tensor, full.tensor); });
  }
  // In place: after some hundred calls the sums are infinite, which takes as long.
  void all_reduce() {
    const Held full = normal("full", world_.size());
    measure("all reduce", [&] { world_.all_reduce(rank_.ctx(), StreamKind::kComm, full.tensor); });
  }

  BenchRank& rank_;
  Communicator& world_;
  const dim_t n_;  // fp32 elements to a peer
  const std::string shape_;
};

}  // namespace

void bench_comm(BenchRank& rank) {
  constexpr dim_t kKiB = 1024, kMiB = 1024 * kKiB;
  const std::vector<dim_t> sizes =
      rank.setup().on_cpu() ? std::vector{64 * kKiB, kMiB} : std::vector{kMiB, 32 * kMiB, 512 * kMiB};
  for (const dim_t bytes : sizes) Collectives(rank, bytes).run();
}

}  // namespace untied
