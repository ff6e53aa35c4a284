#include "model/parameters.h"

#include "base/error.h"

namespace untied {

ModelParameters::ModelParameters(const ModelConfig& config) {
  if (config.family != "llama")
    throw InputError("models of the family '{}' cannot be trained yet; supported: llama", config.family);
  const dim_t E = config.hidden, F = config.mlp, V = config.vocab;
  const dim_t q_rows = config.heads * config.head_dim, kv_rows = config.kv_heads * config.head_dim;

  const int embedding = add_unit(UnitKind::kEmbedding, -1, "embedding");
  add(embedding, "model.embed_tokens.weight", {V, E}, Init::kNormal);

  for (int block = 0; block < config.blocks; ++block) {
    const std::string prefix = format("model.layers.{}.", block);

    const int attention = add_unit(UnitKind::kAttention, block, format("block {} attention", block));
    const auto project = [&](const char* name, dim_t rows, dim_t cols, HeadAxis weight_heads, HeadAxis bias_heads) {
      add(attention, prefix + "self_attn." + name + ".weight", {rows, cols}, Init::kNormal, weight_heads);
      if (config.attention_bias)
        add(attention, prefix + "self_attn." + name + ".bias", {rows}, Init::kZeros, bias_heads);
    };
    add(attention, prefix + "input_layernorm.weight", {E}, Init::kOnes);
    project("q_proj", q_rows, E, HeadAxis::kQueryRows, HeadAxis::kQueryRows);
    project("k_proj", kv_rows, E, HeadAxis::kKeyRows, HeadAxis::kKeyRows);
    project("v_proj", kv_rows, E, HeadAxis::kKeyRows, HeadAxis::kKeyRows);
    project("o_proj", E, q_rows, HeadAxis::kQueryCols, HeadAxis::kNone);

    const int mlp = add_unit(UnitKind::kMlp, block, format("block {} mlp", block));
    const auto layer = [&](const char* name, dim_t rows, dim_t cols) {
      add(mlp, prefix + "mlp." + name + ".weight", {rows, cols}, Init::kNormal);
      if (config.mlp_bias) add(mlp, prefix + "mlp." + name + ".bias", {rows}, Init::kZeros);
    };
    add(mlp, prefix + "post_attention_layernorm.weight", {E}, Init::kOnes);
    layer("gate_proj", F, E);
    layer("up_proj", F, E);
    layer("down_proj", E, F);
  }

  const int norm = add_unit(UnitKind::kFinalNorm, -1, "final norm");
  add(norm, "model.norm.weight", {E}, Init::kOnes);

  if (!config.tied) {
    const int head = add_unit(UnitKind::kHead, -1, "head");
    add(head, "lm_head.weight", {V, E}, Init::kNormal);
  }
}

}  // namespace untied
