#include "model/config.h"

#include <cmath>

#include "base/error.h"

namespace untied {
namespace {

// Far above any model, and low enough that sixteen bytes for every parameter count in 63 bits:
// L (2 E·HD + 2 E·KD + 3 E·F) + 2 V·E < 2^12 (4 · 2^18 · 2^22 + 3 · 2^18 · 2^21) + ... < 2^56.
constexpr dim_t kMaxHidden = dim_t{1} << 18;
constexpr dim_t kMaxBlocks = dim_t{1} << 12;
constexpr dim_t kMaxHeads = dim_t{1} << 12;
constexpr dim_t kMaxHeadDim = dim_t{1} << 10;
constexpr dim_t kMaxMlp = dim_t{1} << 21;
constexpr dim_t kMaxVocab = dim_t{1} << 24;
constexpr dim_t kMaxContext = dim_t{1} << 40;

void check_range(dim_t value, dim_t low, dim_t high, const char* field, const std::string& where) {
  if (value < low || value > high) throw InputError("{}: {} is {}, expected {} to {}", where, field, value, low, high);
}

void check_positive(double value, const char* field, const std::string& where) {
  if (!std::isfinite(value) || value <= 0)
    throw InputError("{}: {} is {}, expected a number above 0", where, field, value);
}

void validate_rope(const RopeConfig& rope, const std::string& where) {
  check_positive(rope.theta, "rope_theta", where);
  if (rope.type == RopeType::kDefault) return;
  check_positive(rope.factor, "the rope factor", where);
  check_positive(rope.low_freq_factor, "low_freq_factor", where);
  check_positive(rope.high_freq_factor, "high_freq_factor", where);
  // The blend between the two bands divides by their difference.
  if (rope.high_freq_factor <= rope.low_freq_factor)
    throw InputError("{}: high_freq_factor is {}, expected more than low_freq_factor, which is {}", where,
                     rope.high_freq_factor, rope.low_freq_factor);
  check_range(rope.original_context, 1, kMaxContext, "original_max_position_embeddings", where);
}

}  // namespace

void validate(const ModelConfig& config, const std::string& where) {
  check_range(config.hidden, 1, kMaxHidden, "hidden_size", where);
  check_range(config.blocks, 1, kMaxBlocks, "num_hidden_layers", where);
  check_range(config.heads, 1, kMaxHeads, "num_attention_heads", where);
  check_range(config.kv_heads, 1, config.heads, "num_key_value_heads", where);
  if (config.heads % config.kv_heads != 0)
    throw InputError("{}: num_key_value_heads is {}, expected a divisor of num_attention_heads, which is {}", where,
                     config.kv_heads, config.heads);
  check_range(config.head_dim, 2, kMaxHeadDim, "head_dim", where);
  if (config.head_dim % 2 != 0)
    throw InputError("{}: head_dim is {}, expected an even number: the rotary embedding turns pairs", where,
                     config.head_dim);
  check_range(config.mlp, 1, kMaxMlp, "intermediate_size", where);
  check_range(config.vocab, 1, kMaxVocab, "vocab_size", where);
  check_range(config.max_context, 0, kMaxContext, "max_position_embeddings", where);
  check_positive(config.norm_eps, "rms_norm_eps", where);
  if (!std::isfinite(config.init_std) || config.init_std < 0)
    throw InputError("{}: initializer_range is {}, expected a number from 0", where, config.init_std);
  validate_rope(config.rope, where);
}

dim_t parameter_count(const ModelConfig& config) {
  const dim_t E = config.hidden, L = config.blocks, F = config.mlp, V = config.vocab, D = config.head_dim;
  const dim_t q_rows = config.heads * D, kv_rows = config.kv_heads * D;
  const dim_t attention = 2 * E * q_rows + 2 * E * kv_rows;
  const dim_t attention_bias = config.attention_bias      ? q_rows + 2 * kv_rows + E
                               : config.family == "qwen2" ? q_rows + 2 * kv_rows
                                                          : 0;
  const dim_t head_norms = config.family == "qwen3" ? 2 * D : 0;
  const dim_t mlp = 3 * E * F + (config.mlp_bias ? 2 * F + E : 0);
  const dim_t block = attention + attention_bias + head_norms + mlp + 2 * E;
  return L * block + E + (config.tied ? 1 : 2) * V * E;
}

// A tied table stays: it is the head's matrix too, and its products cost what an untied head's do.
dim_t non_embedding_parameter_count(const ModelConfig& config) {
  return parameter_count(config) - (config.tied ? 0 : config.vocab * config.hidden);
}

}  // namespace untied
