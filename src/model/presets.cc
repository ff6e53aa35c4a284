#include "model/presets.h"

namespace untied {
namespace {

struct Preset {
  const char* name;
  ModelConfig config;
};

RopeConfig rope(double theta) { return {.theta = theta}; }

// Of Llama 3.1 and 3.2; only the factor differs.
RopeConfig llama3_rope(double factor) {
  return {.type = RopeType::kLlama3,
          .theta = 500000.0,
          .factor = factor,
          .low_freq_factor = 1.0,
          .high_freq_factor = 4.0,
          .original_context = 8192};
}

// Sizes are those of the public config.json files. A family that cannot be trained yet is refused where its parameters
// are listed (model/parameters.cc).
const std::vector<Preset>& presets() {
  constexpr DType kBF16 = DType::kBF16;
  static const std::vector<Preset> table = {
      // The demo's model: bytes as tokens, seconds per step on a laptop.
      {"tiny",
       {.hidden = 128,
        .blocks = 4,
        .heads = 8,
        .kv_heads = 2,
        .head_dim = 16,
        .mlp = 384,
        .vocab = 256,
        .norm_eps = 1e-5,
        .max_context = 32768}},
      {"llama-3.2-1b",
       {.hidden = 2048,
        .blocks = 16,
        .heads = 32,
        .kv_heads = 8,
        .head_dim = 64,
        .mlp = 8192,
        .vocab = 128256,
        .norm_eps = 1e-5,
        .tied = true,
        .max_context = 131072,
        .rope = llama3_rope(32),
        .dtype = kBF16}},
      {"llama-3.2-3b",
       {.hidden = 3072,
        .blocks = 28,
        .heads = 24,
        .kv_heads = 8,
        .head_dim = 128,
        .mlp = 8192,
        .vocab = 128256,
        .norm_eps = 1e-5,
        .tied = true,
        .max_context = 131072,
        .rope = llama3_rope(32),
        .dtype = kBF16}},
      {"llama-3-8b",
       {.hidden = 4096,
        .blocks = 32,
        .heads = 32,
        .kv_heads = 8,
        .head_dim = 128,
        .mlp = 14336,
        .vocab = 128256,
        .norm_eps = 1e-5,
        .max_context = 8192,
        .rope = rope(500000),
        .dtype = kBF16}},
      {"llama-3.1-8b",
       {.hidden = 4096,
        .blocks = 32,
        .heads = 32,
        .kv_heads = 8,
        .head_dim = 128,
        .mlp = 14336,
        .vocab = 128256,
        .norm_eps = 1e-5,
        .max_context = 131072,
        .rope = llama3_rope(8),
        .dtype = kBF16}},
      {"llama-3.1-70b",
       {.hidden = 8192,
        .blocks = 80,
        .heads = 64,
        .kv_heads = 8,
        .head_dim = 128,
        .mlp = 28672,
        .vocab = 128256,
        .norm_eps = 1e-5,
        .max_context = 131072,
        .rope = llama3_rope(8),
        .dtype = kBF16}},
      {"qwen2.5-7b",
       {.family = "qwen2",
        .hidden = 3584,
        .blocks = 28,
        .heads = 28,
        .kv_heads = 4,
        .head_dim = 128,
        .mlp = 18944,
        .vocab = 152064,
        .norm_eps = 1e-6,
        .max_context = 131072,
        .rope = rope(1e6),
        .dtype = kBF16}},
      {"qwen3-0.6b",
       {.family = "qwen3",
        .hidden = 1024,
        .blocks = 28,
        .heads = 16,
        .kv_heads = 8,
        .head_dim = 128,
        .mlp = 3072,
        .vocab = 151936,
        .norm_eps = 1e-6,
        .tied = true,
        .max_context = 40960,
        .rope = rope(1e6),
        .dtype = kBF16}},
      {"qwen3-8b",
       {.family = "qwen3",
        .hidden = 4096,
        .blocks = 36,
        .heads = 32,
        .kv_heads = 8,
        .head_dim = 128,
        .mlp = 12288,
        .vocab = 151936,
        .norm_eps = 1e-6,
        .max_context = 40960,
        .rope = rope(1e6),
        .dtype = kBF16}},
      {"qwen3-32b",
       {.family = "qwen3",
        .hidden = 5120,
        .blocks = 64,
        .heads = 64,
        .kv_heads = 8,
        .head_dim = 128,
        .mlp = 25600,
        .vocab = 151936,
        .norm_eps = 1e-6,
        .max_context = 40960,
        .rope = rope(1e6),
        .dtype = kBF16}},
      {"mistral-7b",
       {.family = "mistral",
        .hidden = 4096,
        .blocks = 32,
        .heads = 32,
        .kv_heads = 8,
        .head_dim = 128,
        .mlp = 14336,
        .vocab = 32768,
        .norm_eps = 1e-5,
        .max_context = 32768,
        .rope = rope(1e6),
        .dtype = kBF16}},
  };
  return table;
}

}  // namespace

std::optional<ModelConfig> find_preset(std::string_view name) {
  for (const Preset& preset : presets())
    if (name == preset.name) return preset.config;
  return std::nullopt;
}

std::vector<std::string> preset_names() {
  std::vector<std::string> names;
  for (const Preset& preset : presets()) names.push_back(preset.name);
  return names;
}

}  // namespace untied
