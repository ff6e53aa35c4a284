// The bias of a projection on the cpu. Backward gives each thread a strip of columns and adds all rows in order, so the number
// of threads changes no bit; in double, because one call may see a million rows.
#include "ops/cpu_kernel.h"
#include "ops/matmul.h"

namespace untied::cpu {

void add_bias(Ctx& ctx, const Tensor& y_RN, const Tensor& bias_N) {
  require_f32("add_bias", {&y_RN, &bias_N});
  const Array bias = flat(bias_N);
  parallel_for(ctx, y_RN.dim(0), y_RN.dim(1), [&](dim_t r) { row(y_RN, r) += bias; });
}

void bias_backward(Ctx& ctx, const Tensor& dbias_N, const Tensor& dy_RN, Accumulate accumulate) {
  require_f32("bias_backward", {&dy_RN});
  constexpr dim_t kStrip = 256;
  const dim_t R = dy_RN.dim(0), N = dy_RN.dim(1);
  parallel_for(ctx, ceil_div(N, kStrip), R * kStrip, [&](dim_t strip) {
    const dim_t begin = strip * kStrip, columns = std::min(kStrip, N - begin);
    Array dbias(dbias_N.f32() + begin, columns);
    Eigen::Array<double, Eigen::Dynamic, 1, Eigen::ColMajor, kStrip, 1> sum(columns);
    if (accumulate == Accumulate::kAdd) sum = dbias.cast<double>();
    else sum.setZero();
    for (dim_t r = 0; r < R; ++r) sum += ConstArray(row_of(dy_RN, r) + begin, columns).cast<double>();
    dbias = sum.cast<float>();
  });
}

}  // namespace untied::cpu
