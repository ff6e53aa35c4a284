// Chooses what the user left to `auto`, so that the run fits, and finds the longest context that does.
#pragma once

#include "plan/memory_plan.h"

namespace untied {

// Memory that there is for one rank.
struct MemoryLimits {
  dim_t device = 0, host = 0;
  bool shared = false;  // cpu: both arenas come out of `device`
};

// From --device-memory, --host-memory (per node, shared by its ranks) and the target; what is not given is what the machine
// has on cpu, and the published setting's 80 GB and 2 TB on cuda.
MemoryLimits memory_limits(const RunConfig& config, Backend target, int ranks);

struct Choice {
  Layout layout;
  MemoryPlan plan;
  bool fits = false;
  std::string limited_by;  // "device memory (activations ...)": what would have to be larger, or "" when it fits
};

// The first that fits of: all on the device; saved activations on the host; the optimizer's state there too; attention run
// again in backward. Fields that the user set stay. When nothing fits, the most frugal with fits = false.
Choice choose_layout(const RunConfig& config, const ModelConfig& model, Backend target, const MemoryLimits& limits);

struct LongestContext {
  dim_t tokens = 0;        // 0: not even the shortest fits
  std::string limited_by;  // of one step more
};
// To 1/256 of its length, in multiples of 1024 where it is longer.
LongestContext longest_context(RunConfig config, const ModelConfig& model, Backend target, const MemoryLimits& limits);

}  // namespace untied
