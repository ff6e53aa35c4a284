// A run's numbers, all of them decided: what the passes, the plan and the log read. Made from the user's wishes by
// `resolve_layout`; the fields that depend on what fits are chosen by plan/choose.h.
#pragma once

#include "memory/store.h"
#include "model/execution.h"
#include "train/config.h"

namespace untied {

inline constexpr dim_t kLongestContext = (dim_t{1} << 31) - 1;  // positions, ids and targets are 32-bit

struct Layout {
  Backend target = Backend::kCpu;
  DType dtype = DType::kF32;  // activations and working weights
  int ranks = 1;              // W
  int ulysses = 1;            // P
  int heads_per_stage = 1;    // U
  dim_t context = 0;          // S as asked for
  dim_t tokens = 0;           // T, rows of a rank; P*T >= S
  Tiling tiles;
  SavePolicy save = SavePolicy::kAttention;
  Tier store = Tier::kHost;
  MemoryKind optimizer = MemoryKind::kDevice;
  int accumulate = 1;
  int threads = 1;  // of one rank (cpu)
};

// Everything that does not depend on what fits. Fields that the user left to `auto` and that do get the value that is fastest
// when memory is plentiful. Throws ConfigError naming the option for numbers that the model cannot have.
Layout resolve_layout(const RunConfig& config, const ModelConfig& model, Backend target);

// "4 ranks, Ulysses 4, 8 of 32 heads per stage, ..." for logs and plans.
std::string describe(const Layout& layout, const ModelConfig& model);

}  // namespace untied
