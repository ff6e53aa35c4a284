#include "train/model_flops.h"

#include <gtest/gtest.h>

#include "model/presets.h"
#include "support/small_model.h"

namespace untied {
namespace {

// Pair by pair: documents of 3 and 4 tokens attend 6 and 10 pairs; the padding after them nothing.
TEST(ModelFlops, CountsPairsInsideDocuments) {
  const ModelConfig model = small_model(4, 2);
  const std::vector<std::shared_ptr<const Sequence>> batch{make_sequence(10, {3, 4}, 61, 1),
                                                           make_sequence(10, {10}, 61, 2)};
  const double parameters = static_cast<double>(parameter_count(model) - model.vocab * model.hidden);
  const double pairs = 6 + 10 + 55, width = 4 * 8;
  EXPECT_DOUBLE_EQ(model_flops(model, batch), 6 * (7 + 10) * parameters + 12 * pairs * width * 2);
}

// The published size of Llama-3-8B: 7.5e9 parameters beside the embedding; at 1M tokens attention is over nine tenths.
TEST(ModelFlops, LongContextIsAttention) {
  const ModelConfig model = *find_preset("llama-3-8b");
  const dim_t S = dim_t{1} << 20;
  auto sequence = std::make_shared<Sequence>();
  sequence->tokens = S;
  sequence->document_starts = {0};
  const std::vector<std::shared_ptr<const Sequence>> batch{sequence};
  const double s = static_cast<double>(S), attention = 12.0 * 0.5 * s * (s + 1) * 4096 * 32;
  EXPECT_NEAR(model_flops(model, batch) / (attention + 6 * s * 7.5048e9), 1, 1e-3);
  EXPECT_GT(attention / model_flops(model, batch), 0.9);
}

}  // namespace
}  // namespace untied
