#pragma once

#include <span>

#include "io/dataset.h"
#include "model/config.h"

namespace untied {

// Floating-point operations that a step's mathematics takes: what model FLOPs utilisation (`mfu`) counts, whatever a method
// computes again. Forward and backward: 6 for each parameter and token, without the embedding (Kaplan et al. 2020); attention
// 12 D for each head and each (row, key) pair inside a document (PaLM, appendix B, causal). Padding counts nothing.
double model_flops(const ModelConfig& model, std::span<const std::shared_ptr<const Sequence>> micro_batches);

}  // namespace untied
