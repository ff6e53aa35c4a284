// How the cuda backend cuts attention into kernel calls, and the scratch that they share: functions of numbers alone, so that
// a plan and a run agree, and a test can read the whole table.
//
// A block of query rows falls into parts: neighbouring rows of one document, at most 32 Ki. A part attends its own rows, a
// causal square, and all rows of its document before them, in slices of keys without a mask. What the slices give is merged
// in fp32. The sizes are those that an H200 likes (cuDNN 9.19, sustained rates):
//   forward   calls of 16 to 32 Ki rows x heads run at 590 to 600 TFLOP/s; 8 Ki at half of that. One call over 1 Mi, 10 Mi keys
//             returns o too small by 0.1, 1 %: its accumulator drifts. 512 Ki keys are safe, and none slower.
//   backward  tiles of 32 Ki x 32 Ki are as fast as the whole, with 16 MiB of workspace instead of gigabytes.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "ops/attention.h"

namespace untied {

inline constexpr dim_t kCallRows = 32 * 1024;      // rows x heads of a call, at most
inline constexpr dim_t kForwardKeys = 512 * 1024;  // keys of a call
inline constexpr dim_t kBackwardKeys = 32 * 1024;  // keys x heads of a call
inline constexpr dim_t kShortSlice = 32 * 1024;    // slices halve down to this; the last one takes what is left

struct AttentionPart {
  Range rows;      // positions in the sequence, of one document
  dim_t document;  // where it begins
};
// The parts of rows [first_row, first_row + rows), in order.
std::vector<AttentionPart> attention_parts(dim_t first_row, dim_t rows, DocumentStarts documents);

// Rows against keys: causal (the same rows as keys, row i attends keys up to i) or all against all.
struct KernelCall {
  Range rows, keys;
  bool causal;
};
// The calls of one part; together they cover what its rows attend, once. Slices have few different sizes, since each new shape
// costs the library 50 ms: 512, 256, 128, 64, 32 Ki (backward 32 Ki alone), and a rest.
std::vector<KernelCall> kernel_calls(const AttentionPart& part, bool backward);

// Whether the library takes a call, or the plain kernel (attention_merge_cuda.cu), which is right for every shape and slow.
// Plain are a few rows or keys, where the library has other engines and other faults (one row and one key: refused; one row:
// NaN gradients where log-sum-exp is below -88), and short documents, whose many lengths would each be a new shape.
bool suits_library(const KernelCall& call);

// How many heads a call of this part takes together.
dim_t heads_per_call(const AttentionPart& part, bool backward);

// Query heads [first, first + count) for one call: their kv_count key/value heads lie evenly spaced in memory, and each serves
// count / kv_count neighbouring query heads.
struct HeadGroup {
  dim_t first, count, kv_count;
};
// Addresses of a query head's key/value head: of all that a call touches, unused ones 0.
using HeadAddresses = std::array<std::uintptr_t, 4>;
// All heads, in order, in groups of at most `most`. A group spans less than 2^31 bytes of each tensor, for the library's sake.
std::vector<HeadGroup> head_groups(std::span<const HeadAddresses> heads, dim_t most);

// Byte offsets into the scratch of one op, and its size.
struct AttentionScratch {
  dim_t lse = 0;                   // [heads, rows] of a call, packed, fp32
  dim_t lse_sum = 0;               // forward, merged so far
  dim_t part = 0, sum = 0;         // a slice's o or dq, bf16; the same merged so far, fp32
  dim_t dk = 0, dv = 0;            // backward: a call's, bf16
  dim_t plan = 0, plan_bytes = 0;  // the library's workspace; a plan that wants more is refused
  dim_t bytes = 0;
};
AttentionScratch attention_scratch_cuda(dim_t heads, dim_t rows, dim_t keys, dim_t head_dim, bool backward);

}  // namespace untied
