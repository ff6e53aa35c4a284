// `untied bench`: measured rates.
#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <ctime>

#include "app/prepare.h"
#include "base/error.h"
#include "plan/report.h"
#include "train/local_ranks.h"
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

// Whole training steps on the chosen layout, random weights and tokens.
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

  std::vector<double> seconds;
  std::clock_t cpu_begin = 0, cpu_end = 0;  // of the whole process: what a busy machine cannot stretch
  run_local_ranks(run.layout.ranks, [&](std::shared_ptr<Communicator> world) {
    const auto rank = start_rank(run, std::move(world));
    for (int i = 0; i < kWarmUps + kMeasured; ++i) {
      rank->world->barrier(rank->ctx());
      if (rank->world->rank() == 0 && i == kWarmUps) cpu_begin = std::clock();
      const auto start = std::chrono::steady_clock::now();
      train_step(*rank, batch, {.adamw = {.lr = 1e-4, .step = i + 1}, .clip = 1.0});
      const double s = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
      if (rank->world->rank() == 0 && i >= kWarmUps) seconds.push_back(s);
    }
    if (rank->world->rank() == 0) cpu_end = std::clock();
  });
  std::sort(seconds.begin(), seconds.end());
  const double median = seconds[seconds.size() / 2];
  const double cpu = static_cast<double>(cpu_end - cpu_begin) / CLOCKS_PER_SEC / kMeasured;
  const double rate = static_cast<double>(run.layout.context) * run.layout.accumulate / median;
  const double gflops = choice.plan.step.flops * run.layout.ranks / median * 1e-9;
  if (invocation.json) {
    fmt::print("{}\n", Json{{"kind", "bench_step"},
                            {"seconds", median},
                            {"seconds_best", seconds.front()},
                            {"cpu_seconds", cpu},
                            {"tokens_per_second", rate},
                            {"gflops", gflops},
                            {"layout", layout_json(run.layout)}}
                           .dump());
  } else {
    fmt::print(
        "{}\nstep: {} (median of {}, best {}; {:.2f} cpu-seconds), {:.0f} tokens/s, {:.1f} GFLOP/s counted with what is computed "
        "again\n",
        describe(run.layout, run.model), format_seconds(median), kMeasured, format_seconds(seconds.front()), cpu, rate,
        gflops);
  }
  return 0;
}

}  // namespace

int run_bench(const Invocation& invocation) {
  if (invocation.action == "step") return bench_step(invocation);
  throw ConfigError("bench {}: is not available yet; step is", invocation.action);
}

}  // namespace untied
