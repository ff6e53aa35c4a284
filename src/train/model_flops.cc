#include "train/model_flops.h"

#include "ops/attention.h"

namespace untied {

double model_flops(const ModelConfig& model, std::span<const std::shared_ptr<const Sequence>> micro_batches) {
  double tokens = 0, pairs = 0;
  for (const auto& sequence : micro_batches) {
    tokens += static_cast<double>(sequence->tokens);
    pairs += attended_pairs(0, sequence->tokens, sequence->document_starts);  // padding is at the end
  }
  return 6.0 * tokens * static_cast<double>(non_embedding_parameter_count(model)) +
         12.0 * pairs * static_cast<double>(model.heads * model.head_dim * model.blocks);
}

}  // namespace untied
