// The attention phase of a block, stage by stage and tile by tile (docs/algorithm.md): what grows with the context is
// the hidden state, its gradients and the key/value heads of one stage; all else is a tile.
#pragma once

#include "model/exchange.h"
#include "model/rows.h"

namespace untied {

// o = attention(norm(x)) into the saved output of `slot`, with its log-sum-exp. x is only read.
void attention_pass_forward(const Execution& run, const RankBatch& batch, const ShardedParameters::Use& weights,
                            const RowSource& x, int slot);

// Backward of the same, from dx = dL/d(x + o Wo): adds the attention's part to dx, in place, and the gradients of the norm and
// of q, k, v to `gradients` (o's belongs to the tile loop that has o at hand, model/block.cc).
void attention_pass_backward(const Execution& run, const RankBatch& batch, const ShardedParameters::Use& weights,
                             GradientShards::Open& gradients, const RowSource& x, int slot, const Tensor& dx_TE);

}  // namespace untied
