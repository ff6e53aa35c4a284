// The whole model: one micro-batch forward and backward, and forward alone.
#pragma once

#include "model/execution.h"

namespace untied {

// Adds the micro-batch's loss (a sum over this rank's valid targets) to loss (fp64[1]) and its gradients to run.gradients.
// loss_scale = 1 / valid targets of the whole step, so that micro-batches and ranks simply add up.
void forward_backward(const Execution& run, const RankBatch& batch, const Tensor& loss, double loss_scale);

// Adds the sequence's loss, as above; saves nothing, changes nothing.
void forward_loss(const Execution& run, const RankBatch& batch, const Tensor& loss);

// Logits of this rank's tokens, logits_TV: for tests and small models (no tile of it is ever held in training).
void forward_logits(const Execution& run, const RankBatch& batch, const Tensor& logits_TV);

// How often one micro-batch reduces each unit's gradient.
std::vector<int> unit_uses(const ParameterTable& table);

}  // namespace untied
