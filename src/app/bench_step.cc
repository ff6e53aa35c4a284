// `untied bench step`: whole training steps.
#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <ctime>

#include "app/bench.h"
#include "app/prepare.h"
#include "base/error.h"
#include "device/cuda.h"
#include "device/hardware.h"
#include "memory/profile.h"
#include "plan/report.h"
#include "train/model_flops.h"
#include "train/run.h"

namespace untied {
namespace {

constexpr int kWarmUps = 1, kMeasured = 5;

// One document of pseudo-random tokens that fills the context.
std::shared_ptr<const Sequence> random_sequence(dim_t context, dim_t vocab, std::uint64_t seed) {
  auto sequence = std::make_shared<Sequence>();
  std::uint64_t state = seed * 2 + 1;
  for (dim_t i = 0; i < context; ++i) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    sequence->ids.push_back(static_cast<std::int32_t>((state >> 33) % static_cast<std::uint64_t>(vocab)));
    sequence->positions.push_back(static_cast<std::int32_t>(i));
  }
  sequence->targets.assign(sequence->ids.begin() + 1, sequence->ids.end());
  sequence->targets.push_back(kIgnored);
  sequence->document_starts = {0};
  sequence->tokens = context;
  sequence->valid_targets = context - 1;
  return sequence;
}

}  // namespace

// On the chosen layout, with random weights and tokens.
int bench_step(const Invocation& invocation) {
  if (invocation.run.model.empty() || invocation.run.context == 0)
    throw ConfigError("bench step: --model and --context are needed");
  if (invocation.emulate_ranks) throw ConfigError("--emulate-ranks: the loopback communicator is not available yet");
  const Prepared prepared = prepare(invocation);
  const Choice choice = choose_or_throw(prepared);
  Run run = planned_run(prepared, choice);
  const std::vector<std::shared_ptr<const Sequence>> batch(run.layout.accumulate,
                                                           random_sequence(run.layout.context, run.model.vocab,
                                                                           run.config.seed));
  const int measured = run.config.steps > 0 ? static_cast<int>(run.config.steps) : kMeasured;

  std::vector<double> seconds;
  ProfileSummary profile;
  std::string device;
  dim_t on_device = 0;                      // in use on the first device beyond the arena; 0: not known
  std::clock_t cpu_begin = 0, cpu_end = 0;  // of the whole process: what a busy machine cannot stretch
  on_each_rank(run, [&](RankState& rank) {
    const bool first = rank.world->rank() == 0;
    for (int i = 0; i < kWarmUps + measured; ++i) {
      rank.world->barrier(rank.ctx());
      if (first && i == kWarmUps) cpu_begin = std::clock();
      const auto start = std::chrono::steady_clock::now();
      train_step(rank, batch, {.adamw = {.lr = 1e-4, .step = i + 1}, .clip = 1.0});
      const double s = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
      if (first && i >= kWarmUps) seconds.push_back(s);
    }
    if (first) {
      cpu_end = std::clock();
      device = rank.ctx().device.name();
      if (run.layout.target == Backend::kCuda)
        on_device = cuda_memory(0).total - cuda_memory(0).free - rank.ctx().memory.capacity();
    }
    if (!invocation.profile) return;
    rank.world->barrier(rank.ctx());
    Profile marks;
    rank.ctx().profile = &marks;
    train_step(rank, batch, {.adamw = {.lr = 1e-4, .step = kWarmUps + measured + 1}, .clip = 1.0});
    rank.ctx().profile = nullptr;
    if (first) profile = summarize(rank.ctx().device, marks);
  });
  std::sort(seconds.begin(), seconds.end());
  const double median = seconds[seconds.size() / 2];
  const double cpu = static_cast<double>(cpu_end - cpu_begin) / CLOCKS_PER_SEC / measured;
  const double rate = static_cast<double>(run.layout.context) * run.layout.accumulate / median;
  const double gflops = choice.plan.step.flops * run.layout.ranks / median * 1e-9;
  const auto limits = run.layout.dtype == DType::kBF16 ? limits_of(device) : std::nullopt;
  const double mfu =
      limits ? model_flops(run.model, batch) / (median * run.layout.ranks * limits->bf16_tflops * 1e12) : 0;
  if (invocation.json) {
    Json by_op = Json::array();
    for (const ProfileSummary::Row& row : profile.rows)
      by_op.push_back(
          {{"op", row.op}, {"stream", name_of(row.stream)}, {"calls", row.calls}, {"seconds", row.seconds}});
    fmt::print("{}\n", Json{{"kind", "bench_step"},
                            {"seconds", median},
                            {"seconds_best", seconds.front()},
                            {"cpu_seconds", cpu},
                            {"tokens_per_second", rate},
                            {"tokens_per_second_per_rank", rate / run.layout.ranks},
                            {"gflops", gflops},
                            {"mfu", limits ? Json(mfu) : Json()},
                            {"device_peak_bytes", choice.plan.device.bytes},
                            {"host_peak_bytes", choice.plan.host.bytes},
                            {"device_bytes_outside_arena", on_device ? Json(on_device) : Json()},
                            {"layout", layout_json(run.layout)},
                            {"profiled_seconds", invocation.profile ? Json(profile.seconds) : Json()},
                            {"waiting_seconds", invocation.profile ? Json(profile.waiting) : Json()},
                            {"ops", by_op}}
                           .dump());
    return 0;
  }
  fmt::print(
      "{}\nstep: {} (median of {}, best {}; {:.2f} cpu-seconds), {:.0f} tokens/s, {:.1f} GFLOP/s counted with what is "
      "computed again\n",
      describe(run.layout, run.model), format_seconds(median), measured, format_seconds(seconds.front()), cpu, rate,
      gflops);
  if (limits) fmt::print("{:.0f} tokens/s a rank, mfu {:.1f} %\n", rate / run.layout.ranks, 100 * mfu);
  const auto bytes = [](dim_t n) { return format_bytes(static_cast<double>(n)); };
  fmt::print("memory a rank: {} on the device, {} on the host", bytes(choice.plan.device.bytes),
             bytes(choice.plan.host.bytes));
  if (on_device) fmt::print("; {} of the device outside the arena", bytes(on_device));
  fmt::print("\n");
  if (!invocation.profile) return 0;
  fmt::print("a step by op, on the first rank: {}, of which the compute stream waited {}\n",
             format_seconds(profile.seconds), format_seconds(profile.waiting));
  for (const ProfileSummary::Row& row : profile.rows)
    fmt::print("  {:<20} {:<14} {:>8} calls {:>10.4f} s {:>6.1f} %\n", row.op, name_of(row.stream), row.calls,
               row.seconds, 100 * row.seconds / profile.seconds);
  return 0;
}

}  // namespace untied
