// `untied train`.
#include "app/prepare.h"
#include "base/error.h"
#include "base/stop_signal.h"
#include "plan/report.h"
#include "train/run.h"

namespace untied {
namespace {

Json memory_json(const MemoryPeak& peak) { return {{"bytes", peak.bytes}, {"at", peak.at}}; }

}  // namespace

int run_train(const Invocation& invocation) {
  const Prepared prepared = prepare(invocation);
  const ModelParameters table(prepared.model);
  if (prepared.checkpoint) prepared.checkpoint->check(table);
  const Choice choice = choose_or_throw(prepared);

  Run run = planned_run(prepared, choice);
  run.data = Dataset::open(run.config.data, data_options(run.config, run.model.vocab));
  if (!run.config.eval_data.empty()) {
    if (run.config.eval_every == 0) run.config.eval_every = run.config.steps;
    DataOptions options = data_options(run.config, run.model.vocab);
    options.shuffle = false;
    run.eval_data = Dataset::open(run.config.eval_data, options);
  }
  run.format = prepared.checkpoint ? prepared.checkpoint->save_format(table) : new_checkpoint_format(run.model, table);

  RunLog log(run.config.log, false);
  run.log = &log;
  log.note(run.data->report().str());
  log.note(describe(run.layout, run.model));
  log.note(plan_summary(choice));
  if (run.layout.target == Backend::kCuda && run.layout.dtype == DType::kF32)
    log.warn("--dtype fp32 on cuda: attention by a plain kernel, for checking and not for speed; bf16 is fast");
  log.record({{"kind", "config"},
              {"model", run.config.model},
              {"parameters", parameter_count(run.model)},
              {"steps", run.config.steps},
              {"lr", run.config.lr},
              {"layout", layout_json(run.layout)}});
  log.record({{"kind", "plan"}, {"device", memory_json(choice.plan.device)}, {"host", memory_json(choice.plan.host)}});
  if (run.config.dry_run) return 0;

  catch_stop_signals();
  RunEnd end;
  try {
    end = train(run);
  } catch (const std::exception& error) {
    log.record({{"kind", "end"}, {"reason", "error"}, {"message", error.what()}});
    throw;
  }
  log.record({{"kind", "end"}, {"reason", end == RunEnd::kStopped ? "signal" : "finished"}});
  if (end == RunEnd::kStopped) log.note("stopped by a signal; the model is saved");
  return static_cast<int>(end == RunEnd::kStopped ? ExitCode::kStopped : ExitCode::kOk);
}

}  // namespace untied
