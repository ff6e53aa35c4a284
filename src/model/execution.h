// What every pass over the model is given: the numbers of the layout, the batch, and where weights, gradients and saved
// activations come from. Letters: T tokens of this rank, R rows of a tile, E hidden, H heads, D head size, F MLP width.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "comm/communicator.h"
#include "memory/store.h"
#include "memory/tiles.h"
#include "model/config.h"
#include "ops/attention.h"
#include "parallel/gradient_shards.h"
#include "parallel/schedule.h"
#include "parallel/sharded_parameters.h"

namespace untied {

// Rows of one rank that one tile takes.
struct Tiling {
  dim_t query = 0, mlp = 0, loss = 0;
};

// This rank's part of one sequence, on the device, and the document borders of the whole (padded) sequence.
struct RankBatch {
  Tensor ids_T, targets_T, positions_T;  // int32
  std::vector<dim_t> documents;
};

// What forward leaves for backward. Decided once, by the plan: the passes only read `recompute_attention`.
struct SavedActivations {
  // True: attention outputs of one block at a time are kept, and backward runs a block's attention forward again.
  bool recompute_attention = false;
  SavedTensor block_input;  // x_in  [T, E], a slot for each block
  SavedTensor output;       // o     [T, H*D] in working order, a slot for each block, or one
  SavedTensor lse;  // [T, sum over stages of this rank's P * h]: a stage's rows as the exchange tiles lie in memory

  int output_slot(int block) const { return recompute_attention ? 0 : block; }
};

struct Execution {
  Ctx& ctx;
  const ModelConfig& model;
  const ParameterTable& table;
  const HeadSchedule& heads;
  Tiling tiles;
  dim_t tokens;           // T
  Communicator& context;  // the ranks that share a sequence
  ShardedParameters& weights;
  GradientShards& gradients;
  SavedActivations& saved;
  const std::vector<double>& rope;               // inverse frequencies
  std::function<void()> between_blocks = [] {};  // may throw, on all ranks alike, to give up the pass

  DType dtype() const { return weights.dtype(); }
  dim_t sequence() const { return tokens * context.size(); }  // S, padded
  Buffer take(const char* name, const Shape& shape, Category category = Category::kTiles) const {
    return ctx.memory.take(name, category, dtype(), shape);
  }
};

// A buffer and its tensor, for the many that are used whole.
struct Held {
  Buffer buffer;
  Tensor tensor;
};
inline Held hold(Ctx& ctx, const char* name, DType dtype, const Shape& shape, Category category = Category::kTiles) {
  Held held{ctx.memory.take(name, category, dtype, shape), {}};
  held.tensor = held.buffer.tensor(dtype, shape);
  return held;
}
inline Held hold(const Execution& run, const char* name, const Shape& shape, Category category = Category::kTiles) {
  return hold(run.ctx, name, run.dtype(), shape, category);
}

}  // namespace untied
