// y = x W^T + b and its three gradients, as matmul and bias ops. W is [N, E] as in checkpoints.
#pragma once

#include <optional>

#include "ops/matmul.h"

namespace untied {

inline void linear(Ctx& ctx, const Tensor& y_RN, const Tensor& x_RE, const Tensor& weight_NE,
                   const std::optional<Tensor>& bias_N, Accumulate accumulate = Accumulate::kWrite) {
  matmul(ctx, y_RN, x_RE, weight_NE, {.transpose_b = true, .accumulate = accumulate});
  if (bias_N) add_bias(ctx, y_RN, *bias_N);
}

inline void linear_backward_input(Ctx& ctx, const Tensor& dx_RE, const Tensor& dy_RN, const Tensor& weight_NE,
                                  Accumulate accumulate = Accumulate::kWrite) {
  matmul(ctx, dx_RE, dy_RN, weight_NE, {.accumulate = accumulate});
}

inline void linear_backward_weight(Ctx& ctx, const Tensor& dweight_NE, const std::optional<Tensor>& dbias_N,
                                   const Tensor& dy_RN, const Tensor& x_RE, Accumulate accumulate) {
  matmul(ctx, dweight_NE, dy_RN, x_RE, {.transpose_a = true, .accumulate = accumulate});
  if (dbias_N) bias_backward(ctx, *dbias_N, dy_RN, accumulate);
}

}  // namespace untied
