#include "train/run.h"

#include <chrono>

#include "train/abandonment.h"
#include "train/hooks.h"
#include "train/learning_rate.h"
#include "train/local_ranks.h"
#include "train/model_flops.h"
#include "train/progress.h"

namespace untied {
namespace {

using Clock = std::chrono::steady_clock;

struct StepInputs {
  std::vector<std::shared_ptr<const Sequence>> sequences;
  dim_t tokens = 0, valid_targets = 0;
};

StepInputs inputs_of_step(const Run& run, dim_t step) {
  StepInputs inputs;
  for (int i = 0; i < run.layout.accumulate; ++i) {
    inputs.sequences.push_back(run.data->sequence((step - 1) * run.layout.accumulate + i));
    inputs.tokens += inputs.sequences.back()->tokens;
    inputs.valid_targets += inputs.sequences.back()->valid_targets;
  }
  return inputs;
}

StepOptions step_options(const RunConfig& config, dim_t step) {
  return {.adamw = {.lr = learning_rate(config, step),
                    .beta1 = config.beta1,
                    .beta2 = config.beta2,
                    .eps = config.eps,
                    .weight_decay = config.weight_decay,
                    .step = step},
          .clip = config.clip,
          .asks_to_stop = stop_requested};
}

// All ranks gather; the first one writes.
void save(const Run& run, RankState& rank, CheckpointWriter& writer, dim_t step) {
  const bool writes = rank.world->rank() == 0;
  save_weights(rank, writes ? &writer : nullptr);
  if (!writes) return;
  writer.finish();
  run.log->note(format("saved {}", run.config.out));
  run.log->record({{"kind", "checkpoint"}, {"step", step}, {"path", run.config.out}});
}

RunEnd train_rank(const Run& run, CheckpointWriter& writer, Abandonment& abandonment, RankState& rank) {
  const bool speaks = rank.world->rank() == 0;
  std::optional<Progress> progress;
  if (speaks) progress.emplace(*run.log, rank.ctx().place);
  const auto hooks = make_hooks(run);
  Abandonment::Rank give_up(abandonment);

  dim_t step = 0;
  for (bool stop = false; step < run.config.steps && !stop;) {
    ++step;
    const auto start = Clock::now();
    if (progress) progress->begin_step(step, run.config.steps);
    const StepInputs inputs = inputs_of_step(run, step);
    if (inputs.valid_targets == 0) {
      if (speaks) run.log->warn(format("step {}: no valid target in its {} tokens; skipped", step, inputs.tokens));
      continue;
    }
    StepOptions options = step_options(run.config, step);
    options.between_blocks = std::ref(give_up);
    StepRecord record{.step = step, .lr = options.adamw.lr};
    try {
      record.stats = train_step(rank, inputs.sequences, options);
    } catch (const StepAbandoned&) {
      if (speaks) run.log->warn(format("step {} given up: it outlasted --grace {}", step, run.config.grace));
      --step;
      break;
    }
    record.seconds = std::chrono::duration<double>(Clock::now() - start).count();
    record.tokens = inputs.tokens;
    record.valid_targets = inputs.valid_targets;
    record.flops = model_flops(run.model, inputs.sequences);
    if (progress) progress->end_step(record.seconds);
    for (const auto& hook : hooks) hook->after_step(rank, record);
    stop = record.stats.stop;
  }
  save(run, rank, writer, step);
  return step < run.config.steps ? RunEnd::kStopped : RunEnd::kFinished;
}

// A line now and then while pinned memory is reserved.
std::function<void(dim_t, dim_t)> reserve_progress(RunLog& log) {
  return [&log, said = Clock::time_point()](dim_t done, dim_t of) mutable {
    constexpr auto kEvery = std::chrono::seconds(2);
    constexpr dim_t kWorthSaying = dim_t{4} << 30;  // bytes: more than a second
    if (of < kWorthSaying) return;
    if (done == of) return log.progress("");
    if (Clock::now() - said < kEvery) return;
    said = Clock::now();
    log.progress(format("pinning host memory: {} of {} a rank", format_bytes(static_cast<double>(done)),
                        format_bytes(static_cast<double>(of))));
  };
}

}  // namespace

void on_each_rank(const Run& run, const std::function<void(RankState&)>& body) {
  run_local_ranks<RankState>(
      run.layout.target, run.layout.ranks,
      [&](std::shared_ptr<Communicator> world) {
        const int me = world->rank();
        std::unique_ptr<Device> device =
            run.make_device ? run.make_device(me) : make_local_device(run.layout.target, me, run.layout.threads);
        if (run.log && me == 0) device->on_reserve = reserve_progress(*run.log);
        return std::make_unique<RankState>(run.layout, run.model, std::move(device), std::move(world),
                                           run.device_bytes[me], run.host_bytes[me]);
      },
      [&](RankState& rank) {
        load_weights(rank, run.weights.get());
        body(rank);
      });
}

RunEnd train(const Run& run) {
  RunEnd end = RunEnd::kFinished;
  // Made first: a folder that cannot be written, or a full disk, should not show after the last step.
  CheckpointWriter writer(run.config.out, ModelParameters(run.model), run.format);
  Abandonment abandonment(run.config.grace);
  on_each_rank(run, [&](RankState& rank) {
    const RunEnd mine = train_rank(run, writer, abandonment, rank);
    if (rank.world->rank() == 0) end = mine;
  });
  return end;
}

}  // namespace untied
