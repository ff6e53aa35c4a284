#include "plan/choose.h"

#include <algorithm>

#include "base/host_memory.h"

namespace untied {
namespace {

constexpr dim_t kGB = 1'000'000'000;

// What may vary, from the fastest to the most frugal.
struct Frugality {
  Tier store;
  OptimizerPlace optimizer;
  SavePolicy save;
};
constexpr Frugality kLadder[] = {
    {Tier::kDevice, OptimizerPlace::kDevice, SavePolicy::kAttention},
    {Tier::kHost, OptimizerPlace::kDevice, SavePolicy::kAttention},
    {Tier::kHost, OptimizerPlace::kHost, SavePolicy::kAttention},
    {Tier::kHost, OptimizerPlace::kDevice, SavePolicy::kRecompute},
    {Tier::kHost, OptimizerPlace::kHost, SavePolicy::kRecompute},
};

// The ladder's distinct rungs under what the user fixed.
std::vector<RunConfig> rungs(const RunConfig& config) {
  std::vector<RunConfig> list;
  auto same = [](const RunConfig& a, const RunConfig& b) {
    return a.store == b.store && a.optimizer_state == b.optimizer_state && a.save_activations == b.save_activations;
  };
  for (const Frugality& rung : kLadder) {
    RunConfig c = config;
    if (c.store == "auto") c.store = name_of(rung.store);
    if (c.optimizer_state == OptimizerPlace::kAuto) c.optimizer_state = rung.optimizer;
    if (c.save_activations == SavePolicy::kAuto) c.save_activations = rung.save;
    if (std::none_of(list.begin(), list.end(), [&](const RunConfig& other) { return same(c, other); }))
      list.push_back(c);
  }
  return list;
}

// What of the peak grows with the context, or the largest category: the answer to "why".
std::string largest_category(const MemoryPeak& peak) {
  const auto largest = std::max_element(peak.usage.bytes.begin(), peak.usage.bytes.end());
  return format("{} of {} at {}", name_of(static_cast<Category>(largest - peak.usage.bytes.begin())),
                format_bytes(static_cast<double>(*largest)), peak.at);
}

Choice check(const RunConfig& config, const ModelConfig& model, Backend target, const MemoryLimits& limits) {
  Choice choice;
  choice.layout = resolve_layout(config, model, target);
  choice.plan = plan_memory(choice.layout, model);
  const dim_t device = choice.plan.device.bytes + outside_arena(target, choice.layout.ranks),
              host = choice.plan.host.bytes;
  auto over = [&](const char* what, dim_t need, dim_t have, const MemoryPeak& peak) {
    choice.limited_by = format("{}: {} needed, {} there; largest: {}", what, format_bytes(static_cast<double>(need)),
                               format_bytes(static_cast<double>(have)), largest_category(peak));
  };
  if (limits.shared && device + host > limits.device) {
    over("memory of a rank", device + host, limits.device, device >= host ? choice.plan.device : choice.plan.host);
  } else if (device > limits.device) {
    over("device memory of a rank", device, limits.device, choice.plan.device);
  } else if (!limits.shared && host > limits.host) {
    over("host memory of a rank", host, limits.host, choice.plan.host);
  }
  choice.fits = choice.limited_by.empty();
  return choice;
}

}  // namespace

MemoryLimits memory_limits(const RunConfig& config, Backend target, int ranks) {
  if (target == Backend::kCpu) {
    const dim_t machine = host_memory();
    if (!config.device_memory && !config.host_memory) return {machine / ranks, machine / ranks, true};
    return {config.device_memory.value_or(machine / ranks), config.host_memory.value_or(machine) / ranks, false};
  }
  const int on_node = std::min(ranks, config.gpus_per_node);
  return {config.device_memory.value_or(80 * kGB), config.host_memory.value_or(2000 * kGB) / on_node, false};
}

Choice choose_layout(const RunConfig& config, const ModelConfig& model, Backend target, const MemoryLimits& limits) {
  Choice choice;
  for (const RunConfig& rung : rungs(config)) {
    choice = check(rung, model, target, limits);
    if (choice.fits) break;
  }
  return choice;
}

LongestContext longest_context(RunConfig config, const ModelConfig& model, Backend target, const MemoryLimits& limits) {
  LongestContext longest;
  auto fits = [&](dim_t context) {
    config.context = context;
    std::vector<RunConfig> frugal_first = rungs(config);
    std::reverse(frugal_first.begin(), frugal_first.end());
    std::string limited_by;
    for (const RunConfig& rung : frugal_first) {
      const Choice choice = check(rung, model, target, limits);
      if (choice.fits) return true;
      if (limited_by.empty()) limited_by = choice.limited_by;
    }
    longest.limited_by = limited_by;
    return false;
  };
  // From the context asked for, by doubling or halving, then between the two.
  dim_t good = 0, bad = std::min(std::max<dim_t>(config.context, 1024), kLongestContext);
  if (fits(bad)) {
    do good = bad, bad = std::min(2 * bad, kLongestContext);
    while (good < kLongestContext && fits(bad));
  } else {
    while (bad > 1 && !fits(bad / 2)) bad /= 2;
    good = bad / 2;
  }
  while (bad - good > std::max<dim_t>(1, good / 256)) {
    dim_t middle = good + (bad - good) / 2;
    if (middle / 1024 * 1024 > good) middle = middle / 1024 * 1024;
    if (fits(middle)) good = middle;
    else bad = middle;
  }
  longest.tokens = good;
  if (longest.limited_by.empty()) longest.limited_by = "positions are 32-bit";
  return longest;
}

}  // namespace untied
