// The plan is the run on the meta backend: load, two steps, an evaluation, a save, a step, for each distinct kind of rank.
// What its arenas reached is exactly what the run reserves.
#pragma once

#include <string>
#include <vector>

#include "train/rank_state.h"

namespace untied {

struct MemoryPeak {
  dim_t bytes = 0;  // what the arena must hold
  Usage usage;      // by category at that moment; the rest is space between buffers
  std::string at;   // where the program was
};

struct MemoryPlan {
  MemoryPeak device, host;                               // of the rank that needs most
  std::vector<MemoryPeak> device_of_rank, host_of_rank;  // one entry per rank
  Trace step;                                            // work of one step of one rank
  double seconds = 0;                                    // what planning took
};

MemoryPlan plan_memory(const Layout& layout, const ModelConfig& model);

// Device memory that the arena does not hold (cuda: context, library handles, communication buffers) and must leave free.
dim_t outside_arena(Backend target, int ranks);
inline constexpr dim_t kCudaContext = dim_t{512} << 20;  // of it what is taken when a process first touches a GPU

}  // namespace untied
