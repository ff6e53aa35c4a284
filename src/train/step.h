// One training step, one evaluation: functions over a rank's state. All ranks call them together.
#pragma once

#include <functional>
#include <memory>
#include <span>

#include "io/dataset.h"
#include "train/rank_state.h"

namespace untied {

struct StepStats {
  double loss = 0;       // mean over the valid targets of all ranks and micro-batches
  double grad_norm = 0;  // global, before clipping
  bool stop = false;     // some rank was asked to stop
};

struct StepOptions {
  AdamWStep adamw;                                            // lr, betas, ..., step number; gradient_scale is set here
  double clip = 0;                                            // 0: off
  bool update = true;                                         // false: gradients only
  std::function<bool()> asks_to_stop = [] { return false; };  // asked once the gradients are there
  std::function<void()> between_blocks = [] {};               // may throw StepAbandoned, on all ranks alike
};

// A step given up between two blocks: nothing has changed, and the rank's state can be saved or go on.
struct StepAbandoned {};

// Forward and backward of every micro-batch (one sequence each), the global norm, then the update.
// Throws NotFiniteError before any weight or optimizer state is touched. The caller skips steps without a valid target.
// On meta the sequences are null.
StepStats train_step(RankState& rank, std::span<const std::shared_ptr<const Sequence>> micro_batches,
                     const StepOptions& options);

// The sum of the losses of a sequence's valid targets.
double evaluate(RankState& rank, const Sequence* sequence);

// Puts this rank's rows of a sequence on its device.
RankBatch upload(RankState& rank, const Sequence* sequence);

}  // namespace untied
