#include "model/config.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "base/error.h"
#include "model/presets.h"

namespace untied {
namespace {

std::string error_in(const ModelConfig& config) {
  try {
    validate(config, "preset");
  } catch (const InputError& error) {
    return error.what();
  }
  return "";
}

TEST(ModelConfig, ValidateNamesPlaceAndField) {
  const ModelConfig good = *find_preset("llama-3.1-8b");
  EXPECT_EQ(error_in(good), "");
  struct Row {
    void (*change)(ModelConfig&);
    const char* expected;
  };
  constexpr double kInf = std::numeric_limits<double>::infinity();
  const Row rows[] = {
      {[](ModelConfig& c) { c.hidden = 0; }, "preset: hidden_size is 0, expected 1 to 262144"},
      {[](ModelConfig& c) { c.hidden = dim_t{1} << 40; }, "hidden_size is 1099511627776"},
      {[](ModelConfig& c) { c.blocks = -1; }, "num_hidden_layers is -1"},
      {[](ModelConfig& c) { c.heads = 0; }, "num_attention_heads is 0"},
      {[](ModelConfig& c) { c.kv_heads = 0; }, "num_key_value_heads is 0, expected 1 to 32"},
      {[](ModelConfig& c) { c.kv_heads = 64; }, "num_key_value_heads is 64, expected 1 to 32"},
      {[](ModelConfig& c) { c.kv_heads = 5; },
       "num_key_value_heads is 5, expected a divisor of num_attention_heads, which is 32"},
      {[](ModelConfig& c) { c.head_dim = 127; }, "head_dim is 127, expected an even number"},
      {[](ModelConfig& c) { c.head_dim = 0; }, "head_dim is 0"},
      {[](ModelConfig& c) { c.mlp = std::numeric_limits<dim_t>::max(); }, "intermediate_size is 9223372036854775807"},
      {[](ModelConfig& c) { c.vocab = 0; }, "vocab_size is 0"},
      {[](ModelConfig& c) { c.max_context = -1; }, "max_position_embeddings is -1"},
      {[](ModelConfig& c) { c.norm_eps = 0; }, "rms_norm_eps is 0, expected a number above 0"},
      {[](ModelConfig& c) { c.norm_eps = std::nan(""); }, "rms_norm_eps is nan"},
      {[](ModelConfig& c) { c.init_std = -1; }, "initializer_range is -1"},
      {[](ModelConfig& c) { c.rope.theta = kInf; }, "rope_theta is inf"},
      {[](ModelConfig& c) { c.rope.factor = 0; }, "the rope factor is 0"},
      {[](ModelConfig& c) { c.rope.low_freq_factor = 4; },
       "high_freq_factor is 4, expected more than low_freq_factor, which is 4"},
      {[](ModelConfig& c) { c.rope.original_context = 0; }, "original_max_position_embeddings is 0"},
  };
  for (const Row& row : rows) {
    ModelConfig config = good;
    row.change(config);
    EXPECT_NE(error_in(config).find(row.expected), std::string::npos) << row.expected << "\n" << error_in(config);
  }
  ModelConfig plain = good;  // the rest of rope is not read
  plain.rope = {RopeType::kDefault, 10000, 0, 0, 0, 0};
  EXPECT_EQ(error_in(plain), "");
}

TEST(ModelConfig, LargestLegalModelCountsWithoutOverflow) {
  ModelConfig config;
  config.hidden = 1 << 18;
  config.blocks = config.heads = config.kv_heads = 1 << 12;
  config.head_dim = 1 << 10;
  config.mlp = 1 << 21;
  config.vocab = 1 << 24;
  config.attention_bias = config.mlp_bias = true;
  EXPECT_EQ(error_in(config), "");
  EXPECT_GT(parameter_count(config), dim_t{1} << 54);
  EXPECT_LT(parameter_count(config), std::numeric_limits<dim_t>::max() / 16);
}

}  // namespace
}  // namespace untied
