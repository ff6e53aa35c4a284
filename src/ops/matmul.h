#pragma once

#include "ops/op.h"

namespace untied {

struct MatmulOptions {
  bool transpose_a = false, transpose_b = false;
  Accumulate accumulate = Accumulate::kWrite;
};

// Matrix product.  c_MN (+)= op(a) op(b),  op(a) [M, K], op(b) [K, N]; products and sums in fp32.
// in : a, b of one activation type; rows may be strided, the last dimension is contiguous.
// out: c of that type, or fp32 (weight gradients).        alias: none (columns of one buffer may be a and c).
// math on cuda: with kAdd and c of bf16 the product is rounded to bf16 before it is added to c (x + W y as everyone has it).
// K = 0: c is zero, or unchanged.   kWrite never reads c.
// determinism on the cpu: the same bits for any number of threads. Not for parts of c computed on their own (tiles, heads of a
//   stage): Eigen orders the sums of the last rows and columns of a product differently.
// cost: 2MNK FLOPs.  workspace: up to matmul_workspace(target) bytes from the arena.
void matmul(Ctx& ctx, const Tensor& c_MN, const Tensor& a, const Tensor& b, MatmulOptions options = {});

// The cap on a library plan's scratch: what the plan reserves and the run may not exceed.
dim_t matmul_workspace(Backend target);

// y_RN += bias_N in every row.    y, bias of one activation type.   cost: y read and written.
void add_bias(Ctx& ctx, const Tensor& y_RN, const Tensor& bias_N);

// dbias_N (+)= sum over rows of dy_RN, rows in order (cpu: the sum of a call in double).
// dbias fp32, dy an activation.   R = 0: dbias is zero, or unchanged.    cost: dy read.
void bias_backward(Ctx& ctx, const Tensor& dbias_N, const Tensor& dy_RN, Accumulate accumulate);

}  // namespace untied
