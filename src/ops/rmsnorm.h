#pragma once

#include "ops/op.h"

namespace untied {

// RMSNorm (Zhang and Sennrich 2019).  y_RE = x / sqrt(mean(x^2) + eps) * w_E, row by row; sums in fp32.
// in : x, w of one activation type, as y.     alias: y may be x.     cost: x read, y written.
// Nothing is saved: backward forms the row's scale again from x.
void rmsnorm_forward(Ctx& ctx, const Tensor& y_RE, const Tensor& x_RE, const Tensor& w_E, double eps);

// dx_RE += dL/dx;  dw_E (+)= sum over rows of dL/dw.
// in : dy, x, w of one activation type, as dx.  dx is added to, never written: the residual's gradient is already there.
// dw fp32, written or added to.     alias: none (dy must not be dx).
// determinism: dw is summed over fixed blocks of rows, each in order, then over the blocks in order, for any grid or number of
//   threads.     scratch: those partial sums, at most 256 E floats from the arena, a function of R and E alone.
// math: n = x r, r = 1/sqrt(mean(x^2) + eps):  dx = r (w dy - n mean(w dy n)),  dw = dy n.
// cost: x and dy read, dx read and written.
void rmsnorm_backward(Ctx& ctx, const Tensor& dx_RE, const Tensor& dw_E, const Tensor& dy_RE, const Tensor& x_RE,
                      const Tensor& w_E, double eps, Accumulate accumulate_dw);

}  // namespace untied
