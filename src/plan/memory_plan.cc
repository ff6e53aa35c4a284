#include "plan/memory_plan.h"

#include <chrono>
#include <map>
#include <set>

#include "train/step.h"
#include "train/weights_io.h"

namespace untied {
namespace {

struct Traced {
  MemoryPeak device, host;
  Trace step;
};

MemoryPeak peak_of(const Arena& arena) { return {arena.peak(), arena.usage_at_peak(), arena.peak_at()}; }

Trace difference(const Trace& after, const Trace& before) {
  return {after.flops - before.flops, after.bytes_moved - before.bytes_moved, after.bytes_sent - before.bytes_sent,
          after.bytes_copied - before.bytes_copied, after.ops - before.ops};
}

Traced trace_rank(const Layout& layout, const ModelConfig& model, int rank_index) {
  RankState rank(layout, model, make_meta_device(layout.target, layout.threads),
                 make_meta_communicator(rank_index, layout.ranks), -1, -1);
  Ctx& ctx = rank.ctx();
  const std::vector<std::shared_ptr<const Sequence>> micro_batches(layout.accumulate);
  // A step from the same free lists as an earlier one takes the same addresses: it need not be traced again.
  std::set<std::pair<std::uint64_t, std::uint64_t>> stepped_from;
  auto step = [&] {
    if (stepped_from.emplace(ctx.memory.signature(), ctx.host.signature()).second) train_step(rank, micro_batches, {});
  };
  load_weights(rank, nullptr);
  const Trace before = ctx.trace;
  step();
  Traced traced;
  traced.step = difference(ctx.trace, before);
  step();
  evaluate(rank, nullptr);
  save_weights(rank, nullptr);
  step();
  traced.device = peak_of(ctx.memory);
  traced.host = peak_of(ctx.host);
  return traced;
}

// What makes two ranks take the same memory: the sizes of their parts in every stage.
std::vector<int> role(const HeadSchedule& heads, int rank) {
  std::vector<int> sizes;
  for (const Stage& stage : heads.stages) {
    const RankStage& mine = stage.ranks[rank];
    sizes.insert(sizes.end(), {static_cast<int>(mine.heads.size()), static_cast<int>(mine.arrivals.size()),
                               static_cast<int>(mine.departures.size())});
  }
  return sizes;
}

}  // namespace

MemoryPlan plan_memory(const Layout& layout, const ModelConfig& model) {
  const auto start = std::chrono::steady_clock::now();
  const HeadSchedule heads = make_head_schedule(model.heads, model.kv_heads, layout.ulysses, layout.heads_per_stage);
  std::map<std::vector<int>, Traced> traced;
  MemoryPlan plan;
  for (int rank = 0; rank < layout.ranks; ++rank) {
    const std::vector<int> key = role(heads, rank);
    auto found = traced.find(key);
    if (found == traced.end()) found = traced.emplace(key, trace_rank(layout, model, rank)).first;
    const Traced& mine = found->second;
    plan.device_of_rank.push_back(mine.device);
    plan.host_of_rank.push_back(mine.host);
    if (mine.device.bytes > plan.device.bytes) plan.device = mine.device, plan.step = mine.step;
    if (mine.host.bytes > plan.host.bytes) plan.host = mine.host;
  }
  plan.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return plan;
}

// Measured on H200s by `untied bench step` (driver 580, NCCL 2.28): 0.53 GiB with one rank, for the context and kernels of libraries;
// 2.28 to 2.33 with two, each of a rank's two communicators having buffers for its channels to the peer. More peers: not measured.
dim_t outside_arena(Backend target, int ranks) {
  if (target != Backend::kCuda) return 0;
  constexpr dim_t kMiB = dim_t{1} << 20;
  return kCudaContext + (ranks == 1 ? 48 : 1870) * kMiB;
}

}  // namespace untied
