// Small models, sequences and runs for the tests of whole steps.
#pragma once

#include <random>

#include "device/cpu.h"
#include "plan/memory_plan.h"
#include "train/probe.h"

namespace untied {

// Heads are made distinct (random weights are), sizes have no common factors to hide behind.
inline ModelConfig small_model(dim_t heads, dim_t kv_heads, bool tied = false, bool bias = false) {
  ModelConfig model;
  model.hidden = 40;
  model.blocks = 2;
  model.heads = heads;
  model.kv_heads = kv_heads;
  model.head_dim = 8;
  model.mlp = 56;
  model.vocab = 61;
  model.tied = tied;
  model.attention_bias = model.mlp_bias = bias;
  model.init_std = 0.2;
  return model;
}

// A sequence of documents of the given lengths, some labels ignored; what is missing to `context` is padding.
inline std::shared_ptr<const Sequence> make_sequence(dim_t context, const std::vector<dim_t>& documents, dim_t vocab,
                                                     unsigned seed) {
  std::mt19937 random(seed);
  auto s = std::make_shared<Sequence>();
  auto document = [&](dim_t length, bool padding) {
    s->document_starts.push_back(static_cast<dim_t>(s->ids.size()));
    for (dim_t i = 0; i < length; ++i) {
      s->ids.push_back(padding ? 0 : static_cast<int>(random() % vocab));
      s->positions.push_back(static_cast<int>(i));
      const bool valid = !padding && i + 1 < length && random() % 5 != 0;
      s->targets.push_back(valid ? static_cast<int>(random() % vocab) : kIgnored);
      s->valid_targets += valid;
      s->tokens += !padding;
    }
  };
  for (dim_t length : documents) document(length, false);
  if (static_cast<dim_t>(s->ids.size()) < context) document(context - static_cast<dim_t>(s->ids.size()), true);
  return s;
}

// Copies are lazy in all tests of whole steps: a missing wait gives wrong numbers every time.
inline Run make_run(const Layout& layout, const ModelConfig& model, std::shared_ptr<const WeightSource> weights) {
  Run run{.model = model, .layout = layout};
  const MemoryPlan plan = plan_memory(layout, model);
  for (const MemoryPeak& peak : plan.device_of_rank) run.device_bytes.push_back(peak.bytes);
  for (const MemoryPeak& peak : plan.host_of_rank) run.host_bytes.push_back(peak.bytes);
  if (layout.target == Backend::kCpu)
    run.make_device = [threads = layout.threads](int) {
      return make_cpu_device({.threads = threads, .lazy_copies = true});
    };
  run.weights = std::move(weights);
  return run;
}

// One rank, everything in one piece, nothing streamed.
inline Layout single_rank(dim_t context, const ModelConfig& model, int accumulate = 1) {
  return {.heads_per_stage = static_cast<int>(model.heads),
          .context = context,
          .tokens = context,
          .tiles = {context, context, context},
          .store = Tier::kDevice,
          .accumulate = accumulate};
}

}  // namespace untied
