#include "ops/cpu_kernel.h"
#include "ops/matmul.h"

namespace untied::cpu {

void add_bias(Ctx& ctx, const Tensor& y_RN, const Tensor& bias_N) {
  require_f32("add_bias", {&y_RN, &bias_N});
  const Array bias = flat(bias_N);
  parallel_for(ctx, y_RN.dim(0), y_RN.dim(1), [&](dim_t r) { row(y_RN, r) += bias; });
}

// Columns are shared out, rows are added in order: the sum does not depend on the number of threads.
void bias_backward(Ctx& ctx, const Tensor& dbias_N, const Tensor& dy_RN, Accumulate accumulate) {
  require_f32("bias_backward", {&dbias_N, &dy_RN});
  constexpr dim_t kColumns = 256;
  const dim_t R = dy_RN.dim(0), N = dy_RN.dim(1);
  parallel_for(ctx, ceil_div(N, kColumns), R * kColumns, [&](dim_t block) {
    const dim_t begin = block * kColumns, size = std::min(kColumns, N - begin);
    Array sum(dbias_N.f32() + begin, size);
    if (accumulate == Accumulate::kWrite) sum.setZero();
    for (dim_t r = 0; r < R; ++r) sum += Array(row_of(dy_RN, r) + begin, size);
  });
}

}  // namespace untied::cpu
