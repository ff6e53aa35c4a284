#pragma once

#include <span>

#include "ops/rope.h"

namespace untied {

// Between projections, which have a row of all heads per token, and the exchange, which sends whole heads.

// heads_NRD[n] = rotate(tokens_RH[:, source[n]]) : head `source[n]` of every token, side by side.
// tokens_RH is [R, heads * D]; a head may be a source more than once (a key/value head that several ranks need).
// angles: rotate by +angle, half-split pairs (d, d + D/2) as Hugging Face has it; nullptr copies.
// in, out: one activation type; rows of either may be strided, D elements of a head are contiguous.     alias: none.
// cost: 2 * N * R * D elements moved, and the angles read.
void heads_pack(Ctx& ctx, const Tensor& heads_NRD, const Tensor& tokens_RH, std::span<const int> source,
                const RopeAngles* angles);

// The other way: tokens_RH[:, h] = rotate back(sum over n with source[n] == h of heads_NRD[n]), sums in fp32 in order of n.
// angles: rotate by -angle (the transpose, so gradients pass through it); nullptr copies.
// in: tokens' activation type, or fp32; strides as above. Every head of tokens_RH must be a source at least once.
// alias: none.     cost: as above.
void heads_unpack(Ctx& ctx, const Tensor& tokens_RH, const Tensor& heads_NRD, std::span<const int> source,
                  const RopeAngles* angles);

}  // namespace untied
