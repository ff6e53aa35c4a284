#include "app/prepare.h"

#include <fmt/core.h>

#include "app/validate.h"
#include "base/error.h"
#include "base/host_memory.h"
#include "device/cuda.h"

namespace untied {

Backend backend_here(DeviceKind asked) {
  if (asked == DeviceKind::kAuto) {
    if (cuda_device_count() > 0) return Backend::kCuda;
    if (const std::string trouble = cuda_trouble(); !trouble.empty())
      fmt::print(stderr, "untied: {}; computing on the cpu\n", trouble);
    return Backend::kCpu;
  }
  return asked == DeviceKind::kCuda ? Backend::kCuda : Backend::kCpu;
}

MemoryLimits limits_here(const RunConfig& config, Backend target) {
  if (target != Backend::kCuda) return memory_limits(config, target, config.ranks);
  RunConfig found = config;
  if (!found.device_memory) {
    for (int gpu = 0; gpu < config.ranks; ++gpu) {
      const dim_t free = cuda_memory(gpu).free + kCudaContext;  // the plan counts the context, which is made by now
      found.device_memory = std::min(free, found.device_memory.value_or(free));
    }
  }
  if (!found.host_memory) found.host_memory = host_memory() / 10 * 9;  // the rest is not for pinning
  found.gpus_per_node = config.ranks;                                  // they are all in this process
  return memory_limits(found, target, config.ranks);
}

Prepared prepare(const Invocation& invocation) {
  Prepared prepared{.config = invocation.run};
  RunConfig& config = prepared.config;
  const bool plan = invocation.command == Command::kPlan;
  // Plans and benchmarks need shapes only.
  if (invocation.command == Command::kTrain || invocation.command == Command::kVerify)
    prepared.checkpoint = open_checkpoint(config.model);
  prepared.model = prepared.checkpoint ? prepared.checkpoint->config() : load_model_config(config.model);
  // A plan is for GPUs unless told otherwise.
  prepared.target = plan && config.device == DeviceKind::kAuto ? Backend::kCuda : backend_here(config.device);
  const bool on_gpus = prepared.target == Backend::kCuda && !plan;
  if (config.ranks == 0)
    config.ranks = std::max(1, config.ulysses ? config.ulysses : on_gpus ? cuda_device_count() : 1);
  if (on_gpus) require_cuda(config.ranks);
  if (on_gpus && config.deterministic && config.dtype != DType::kF32)
    throw ConfigError(
        "--deterministic: not available yet for bf16 on cuda, whose attention adds dq in any order; --dtype "
        "fp32 is");
  apply_method(config, prepared.model.heads);
  prepared.limits = plan ? memory_limits(config, prepared.target, config.ranks) : limits_here(config, prepared.target);
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
  run.weights =
      prepared.checkpoint ? checkpoint_source(prepared.checkpoint) : random_source(run.config.seed, run.model.init_std);
  return run;
}

}  // namespace untied
