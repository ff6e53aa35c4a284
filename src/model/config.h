// What a decoder-only model is: sizes, biases, rotary embedding. Filled from a Hugging Face config.json (io/hf_config.h)
// or a preset (model/presets.h); the letters are those of docs/algorithm.md.
#pragma once

#include <string>

#include "base/size.h"
#include "tensor/dtype.h"

namespace untied {

enum class RopeType { kDefault, kLlama3 };

struct RopeConfig {
  RopeType type = RopeType::kDefault;
  double theta = 10000.0;
  // llama3 only
  double factor = 1.0, low_freq_factor = 1.0, high_freq_factor = 4.0;
  dim_t original_context = 8192;
};

struct ModelConfig {
  std::string family = "llama";
  dim_t hidden = 0;    // E
  dim_t blocks = 0;    // L
  dim_t heads = 0;     // H, query heads
  dim_t kv_heads = 0;  // K; divides H
  dim_t head_dim = 0;  // D; H*D need not be E
  dim_t mlp = 0;       // F
  dim_t vocab = 0;     // V, rows of the embedding
  double norm_eps = 1e-6;
  double init_std = 0.02;       // initializer_range
  bool tied = false;            // the head is the embedding
  bool attention_bias = false;  // on q, k, v and o
  bool mlp_bias = false;        // on gate, up and down
  dim_t max_context = 0;        // max_position_embeddings, 0 when unknown
  RopeConfig rope;
  DType dtype = DType::kF32;  // of the checkpoint
};

// Throws InputError, naming `where` (a file or a preset) and the field, when the sizes do not make a model.
void validate(const ModelConfig& config, const std::string& where);

// Trainable parameters; with and without the embedding table.
dim_t parameter_count(const ModelConfig& config);
dim_t non_embedding_parameter_count(const ModelConfig& config);

}  // namespace untied
