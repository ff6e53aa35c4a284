// RMSNorm on the cpu: one row at a time, which stays in L1 or L2 between the pass that sums and the pass that writes.
// dw is summed over fixed blocks of rows, then over the blocks in order, so no bit depends on the number of threads.
#include <cmath>

#include "ops/cpu_kernel.h"
#include "ops/rmsnorm.h"

namespace untied::cpu {
namespace {

float inverse_rms(const Array& x, double eps) {
  return static_cast<float>(1 / std::sqrt(x.square().sum() / static_cast<double>(x.size()) + eps));
}

}  // namespace

void rmsnorm_forward(Ctx& ctx, const Tensor& y_RE, const Tensor& x_RE, const Tensor& w_E, double eps) {
  require_f32("rmsnorm_forward", {&y_RE, &x_RE, &w_E});
  parallel_for(ctx, x_RE.dim(0), x_RE.dim(1), [&, w = flat(w_E)](dim_t r) {
    const Array x = row(x_RE, r);
    row(y_RE, r) = x * inverse_rms(x, eps) * w;
  });
}

void rmsnorm_backward(Ctx& ctx, const Tensor& dx_RE, const Tensor& dw_E, const Tensor& dy_RE, const Tensor& x_RE,
                      const Tensor& w_E, double eps, Accumulate accumulate_dw, const Tensor& partial_BE) {
  require_f32("rmsnorm_backward", {&dx_RE, &dy_RE, &x_RE, &w_E});
  const dim_t R = x_RE.dim(0), E = x_RE.dim(1), B = partial_BE.dim(0);
  parallel_for(ctx, B, ceil_div(R, B) * E, [&, w = flat(w_E)](dim_t block) {
    Array partial = row(partial_BE, block);
    partial.setZero();
    for (dim_t r = R * block / B; r < R * (block + 1) / B; ++r) {
      const Array x = row(x_RE, r), dy = row(dy_RE, r);
      const float inverse = inverse_rms(x, eps);
      const float mean = (w * dy * x).sum() / static_cast<float>(E) * inverse;  // of w dy n
      row(dx_RE, r) += inverse * (w * dy - x * (inverse * mean));
      partial += dy * (x * inverse);
    }
  });
  Array dw = flat(dw_E);
  if (accumulate_dw == Accumulate::kWrite) dw.setZero();
  for (dim_t block = 0; block < B; ++block) dw += row(partial_BE, block);
}

}  // namespace untied::cpu
