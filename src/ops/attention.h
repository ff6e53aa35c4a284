#pragma once

#include <span>

#include "ops/op.h"

// h query heads of one rank, R consecutive query rows, S rows of keys; D head size.

namespace untied {

// One key/value head, whole sequence.
struct KeyValue {
  Tensor k_SD, v_SD;
};

// Where documents begin, strictly ascending, the first at 0. A row attends only keys of its own document.
using DocumentStarts = std::span<const dim_t>;

struct AttentionRows {
  dim_t first_row =
      0;  // position in the sequence of query row 0; row i attends keys [start of its document, first_row + i]
  double scale = 1;          // of q.k, 1/sqrt(D)
  DocumentStarts documents;  // empty: one document
};

inline constexpr dim_t kCudaHeadDim = 256;  // the largest D on cuda

// Causal attention of a block of query rows against the keys before and beside them (FlashAttention-2, Dao 2023).
// o_hRD = softmax(scale q k^T) v,  lse_hR = log sum exp(scale q k^T), natural logarithm, fp32.
// in : q_hRD; kv[i] is the key/value head of query head i (entries may repeat), of which rows [0, first_row + R) are read.
// out: o of q's type.      alias: none.
// strides: any over heads and rows, of every tensor; the last dimension is contiguous. h = 0 or R = 0 does nothing.
// math on the cpu: tiles of rows by keys, running maximum in fp32; sums in fp32 inside a tile of keys, then over tiles, so
//   that no sum has more terms than sqrt(S) or so.  Any D.  cost: 4D FLOPs per (row, key) pair attended.
// determinism on the cpu: a row's o and lse do not depend, by a bit, on threads or on how rows are split over calls.
// on cuda: bf16 whose rows begin at multiples of 16 bytes, D % 8 = 0, by cuDNN in calls of attention_calls.h; the rest, and
//   fp32, by a plain kernel. D up to kCudaHeadDim. Two runs agree by the bit, but for dq of bf16 (to rounding).
// workspace: attention_workspace(...) bytes.
void attention_forward(Ctx& ctx, const Tensor& o_hRD, const Tensor& lse_hR, const Tensor& q_hRD,
                       std::span<const KeyValue> kv, const AttentionRows& rows);

// Backward from the final o and lse of the rows: P = exp(scale q k^T - lse), delta = rowsum(do o), dS = P (do v^T - delta).
// dq_hRD = scale dS k, written.    dkv[i].k += scale dS^T q,  dkv[i].v += P^T do: added in fp32 to rows [0, first_row + R).
// dq of q's type. dkv[i] belongs to kv[i]; query heads that share a key/value head name the same dkv, and share its gradient.
// alias: none; different dkv never overlap.   strides: as in forward.
// determinism on the cpu: nothing depends, by a bit, on threads; dq does not depend on how rows are split over calls either
//   (dk, dv then agree to rounding).      cost: 10D FLOPs per pair.
void attention_backward(Ctx& ctx, const Tensor& dq_hRD, std::span<const KeyValue> dkv, const Tensor& do_hRD,
                        const Tensor& q_hRD, const Tensor& o_hRD, const Tensor& lse_hR, std::span<const KeyValue> kv,
                        const AttentionRows& rows);

// (row, key) pairs that rows [first, first + count) attend: the closed form behind every cost and rate.
// Takes O(log documents) and O(documents that begin in the range).
double attended_pairs(dim_t first, dim_t count, DocumentStarts documents);

// Bytes of scratch that one call takes from the arena: a function of shapes, target and threads only, bounded whatever the
// number of rows and keys.
dim_t attention_workspace(const Device& device, dim_t heads, dim_t rows, dim_t keys, dim_t head_dim, bool backward);

}  // namespace untied
