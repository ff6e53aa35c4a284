// Between attention.cc and its backends: what a kernel is called with, and what it says about itself beforehand.
#pragma once

#include <algorithm>

#include "ops/attention.h"

namespace untied {

// Checked by the front half. `workspace` holds attention_workspace(...) bytes.
struct AttentionForwardCall {
  Tensor o_hRD, lse_hR, q_hRD;
  std::span<const KeyValue> kv;
  AttentionRows rows;
  std::byte* workspace;
};
struct AttentionBackwardCall {
  Tensor dq_hRD, do_hRD, q_hRD, o_hRD, lse_hR;
  std::span<const KeyValue> dkv, kv;
  AttentionRows rows;
  std::byte* workspace;
};

void attention_forward_cpu(Ctx& ctx, const AttentionForwardCall& call);
void attention_backward_cpu(Ctx& ctx, const AttentionBackwardCall& call);
void attention_forward_cuda(Ctx& ctx, const AttentionForwardCall& call);
void attention_backward_cuda(Ctx& ctx, const AttentionBackwardCall& call);

// Rows and keys that the cpu kernels take at a time: a function of the head size alone, because the tiles of keys set the
// order of every sum. Rows are a multiple of the strip that fits in registers (24), keys of what one product takes (12).
struct AttentionTiles {
  dim_t rows, keys;
};
AttentionTiles attention_tiles_cpu(dim_t head_dim, bool backward);
dim_t attention_scratch_cpu(dim_t head_dim, bool backward);  // bytes of one thread

// Where the document of `row` begins.
inline dim_t document_start(DocumentStarts documents, dim_t row) {
  return documents.empty() ? 0 : *(std::upper_bound(documents.begin(), documents.end(), row) - 1);
}
// Where the document of `row` ends; `none` if it is the last one.
inline dim_t document_end(DocumentStarts documents, dim_t row, dim_t none) {
  const auto next = std::upper_bound(documents.begin(), documents.end(), row);
  return next == documents.end() ? none : std::min(*next, none);
}

}  // namespace untied
