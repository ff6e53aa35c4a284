#include "app/prepare.h"

#include "app/validate.h"
#include "base/error.h"
#include "device/cpu.h"

namespace untied {

Prepared prepare(const Invocation& invocation) {
  Prepared prepared{.config = invocation.run};
  RunConfig& config = prepared.config;
  const bool plan = invocation.command == Command::kPlan;
  // Plans and benchmarks need shapes only.
  if (invocation.command == Command::kTrain || invocation.command == Command::kVerify)
    prepared.checkpoint = open_checkpoint(config.model);
  prepared.model = prepared.checkpoint ? prepared.checkpoint->config() : load_model_config(config.model);
  prepared.target = config.device == DeviceKind::kCuda || (plan && config.device == DeviceKind::kAuto) ? Backend::kCuda
                                                                                                       : Backend::kCpu;
  if (config.ranks == 0) config.ranks = std::max(1, config.ulysses);
  apply_method(config, prepared.model.heads);
  prepared.limits = memory_limits(config, prepared.target, config.ranks);
  return prepared;
}

Choice choose_or_throw(const Prepared& prepared) {
  Choice choice = choose_layout(prepared.config, prepared.model, prepared.target, prepared.limits);
  if (!choice.fits) {
    const LongestContext longest = longest_context(prepared.config, prepared.model, prepared.target, prepared.limits);
    throw DoesNotFitError("--context {}: {}; the longest context that fits is {}", prepared.config.context,
                          choice.limited_by, format_tokens(longest.tokens));
  }
  return choice;
}

Run planned_run(const Prepared& prepared, const Choice& choice) {
  Run run{.config = prepared.config, .model = prepared.model, .layout = choice.layout};
  for (const MemoryPeak& peak : choice.plan.device_of_rank) run.device_bytes.push_back(peak.bytes);
  for (const MemoryPeak& peak : choice.plan.host_of_rank) run.host_bytes.push_back(peak.bytes);
  if (choice.layout.target != Backend::kCpu)
    throw DeviceError("--device {}: no such backend in this build", name_of(choice.layout.target));
  run.make_device = [threads = choice.layout.threads] { return make_cpu_device({.threads = threads}); };
  run.weights =
      prepared.checkpoint ? checkpoint_source(prepared.checkpoint) : random_source(run.config.seed, run.model.init_std);
  return run;
}

}  // namespace untied
