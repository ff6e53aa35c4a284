// The kernels around the library's attention (attention_cuda.cc), and a plain attention of our own.
#pragma once

#include "ops/attention.h"

namespace untied {

// [heads, rows, D] on the device; the last dimension is contiguous. Strides in elements.
struct HeadRows {
  void* data = nullptr;
  dim_t head_stride = 0, row_stride = 0;
};

// What a call gave for its slice of keys, [heads, rows, D] bf16 packed, joins what the slices before it gave: `sum`, packed, fp32.
// `first` starts the sum; `last` writes the result, bf16, to `to` instead.
struct SliceMerge {
  dim_t heads, rows, head_dim;
  const void* part;
  float* sum;
  HeadRows to;
  bool first, last;
};
// o weighs by log-sum-exp: lse_part and lse_sum are [heads, rows] packed; `last` writes lse to lse_to[head * lse_stride + row].
struct LseMerge {
  const float* lse_part;
  float* lse_sum;
  float* lse_to;
  dim_t lse_stride;
};
void merge_o(Ctx& ctx, const SliceMerge& slice, const LseMerge& lse);
void merge_dq(Ctx& ctx, const SliceMerge& slice);  // a plain sum

// dk += part_k, dv += part_v: fp32 with strides += bf16 packed, [heads, keys, D].
void add_key_value_gradients(Ctx& ctx, const HeadRows& dk, const HeadRows& dv, const void* part_k, const void* part_v,
                             dim_t heads, dim_t keys, dim_t head_dim);

// Attention for every shape, type (fp32, bf16) and stride, head sizes up to kCudaHeadDim; math in fp32. Row i attends keys
// [0, min(keys, diagonal + i + 1)), at least one. Bit-equal from run to run.
struct PlainAttention {
  DType dtype;
  dim_t heads, kv_heads, rows, keys, head_dim;
  dim_t diagonal;
  float scale;
  HeadRows q, k, v, o;
  float* lse;
  dim_t lse_stride;
  HeadRows d_o = {}, dq = {};  // backward: dq is written
  HeadRows dk = {}, dv = {};   // backward: fp32, added to
};
void plain_attention_forward(Ctx& ctx, const PlainAttention& a);   // writes o and lse
void plain_attention_backward(Ctx& ctx, const PlainAttention& a);  // reads o and lse

}  // namespace untied
