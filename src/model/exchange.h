// Between token-sharded and head-sharded (all-to-all, DeepSpeed Ulysses 2023), for one tile of rows and one stage.
// Head-sharded tiles are [P * h, R, D]: source rank, then this rank's heads, then rows; a piece that crosses the wire is
// contiguous on both sides, so nothing is unpacked.
#pragma once

#include "model/execution.h"
#include "ops/heads.h"

namespace untied {

// cos and sin of one tile's positions.
struct TileAngles {
  Held cos, sin;
  RopeAngles angles;
  TileAngles(const Execution& run, const RankBatch& batch, Range rows);
};

// tokens_RH [R, n * D], the stage's n heads in working order  ->  [P * h, R, D] of this rank's h heads.
Held to_heads(const Execution& run, const Stage& stage, const Tensor& tokens_RH, const RopeAngles* angles);
// And back: [P * h, R, D] -> [R, n * D]; angles rotate back.
Held to_tokens(const Execution& run, const Stage& stage, const Tensor& heads_NRD, const RopeAngles* angles);

// Key/value heads of the exchange: rows [rows) of every shard, from the ranks that project them to the buffers of those that
// attend. tokens_RH holds the distinct heads; slots[i] is this rank's buffer i, [S, D].
void send_key_values(const Execution& run, const Stage& stage, Range rows, const Tensor& tokens_RH,
                     std::span<const Tensor> slots, const RopeAngles* angles);
// And back, summing over the ranks that used a head: fp32 gradients [S, D] -> [R, distinct * D].
Held gather_key_value_gradients(const Execution& run, const Stage& stage, Range rows, std::span<const Tensor> slots,
                                const RopeAngles* angles);

}  // namespace untied
