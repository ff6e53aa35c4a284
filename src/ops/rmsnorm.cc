// Front half of RMSNorm: checks, cost, scratch, dispatch.
#include "ops/rmsnorm.h"

#include <algorithm>

#include "ops/check.h"

namespace untied {

namespace cpu {
void rmsnorm_forward(Ctx& ctx, const Tensor& y_RE, const Tensor& x_RE, const Tensor& w_E, double eps);
void rmsnorm_backward(Ctx& ctx, const Tensor& dx_RE, const Tensor& dw_E, const Tensor& dy_RE, const Tensor& x_RE,
                      const Tensor& w_E, double eps, Accumulate accumulate_dw, const Tensor& partial_BE);
}  // namespace cpu

namespace cuda {
void rmsnorm_forward(Ctx& ctx, const Tensor& y_RE, const Tensor& x_RE, const Tensor& w_E, double eps);
void rmsnorm_backward(Ctx& ctx, const Tensor& dx_RE, const Tensor& dw_E, const Tensor& dy_RE, const Tensor& x_RE,
                      const Tensor& w_E, double eps, Accumulate accumulate_dw, const Tensor& partial_BE);
}  // namespace cuda

namespace {

constexpr Kernels<const Tensor&, const Tensor&, const Tensor&, double> kForward{"rmsnorm_forward", cpu::rmsnorm_forward,
                                                                                UNTIED_CUDA_KERNEL(
                                                                                    cuda::rmsnorm_forward)};
constexpr Kernels<const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&, double, Accumulate,
                  const Tensor&>
    kBackward{"rmsnorm_backward", cpu::rmsnorm_backward, UNTIED_CUDA_KERNEL(cuda::rmsnorm_backward)};

// Rows are cut into B equal blocks, each with its own partial sum of dw: enough blocks for every core of a cpu and every
// multiprocessor of a GPU, few enough that the partial sums are a small part of the rows' traffic.
dim_t row_blocks(dim_t rows) {
  constexpr dim_t kLeastRows = 32, kMostBlocks = 256;
  return std::clamp<dim_t>(ceil_div(rows, kLeastRows), 1, kMostBlocks);
}

void check(const Tensor& x_RE, const Tensor& w_E, const Tensor& y_RE, double eps) {
  CHECK_RANK(x_RE, 2);
  CHECK(y_RE.shape() == x_RE.shape(), "rmsnorm: y is {}, x is {}", y_RE.str(), x_RE.str());
  CHECK(w_E.shape() == Shape({x_RE.dim(1)}), "rmsnorm: w is {}, x is {}", w_E.str(), x_RE.str());
  CHECK_ACTIVATION(x_RE);
  CHECK_SAME_DTYPE(x_RE, y_RE);
  CHECK_SAME_DTYPE(x_RE, w_E);
  CHECK_ROWS(x_RE);
  CHECK_ROWS(y_RE);
  CHECK_ROWS(w_E);
  CHECK(eps >= 0, "rmsnorm: eps is {}", eps);
}

}  // namespace

void rmsnorm_forward(Ctx& ctx, const Tensor& y_RE, const Tensor& x_RE, const Tensor& w_E, double eps) {
  check(x_RE, w_E, y_RE, eps);
  CHECK_IN_PLACE(y_RE, x_RE);
  CHECK_APART(y_RE, w_E);
  if (x_RE.size() == 0) return;
  launch(kForward, ctx, Cost{.bytes = moved(x_RE) + moved(y_RE) + moved(w_E)}, y_RE, x_RE, w_E, eps);
}

void rmsnorm_backward(Ctx& ctx, const Tensor& dx_RE, const Tensor& dw_E, const Tensor& dy_RE, const Tensor& x_RE,
                      const Tensor& w_E, double eps, Accumulate accumulate_dw) {
  check(x_RE, w_E, dy_RE, eps);
  CHECK(dx_RE.shape() == x_RE.shape(), "rmsnorm: dx is {}, x is {}", dx_RE.str(), x_RE.str());
  CHECK(dw_E.shape() == w_E.shape(), "rmsnorm: dw is {}, w is {}", dw_E.str(), w_E.str());
  CHECK_SAME_DTYPE(dx_RE, x_RE);
  CHECK_DTYPE(dw_E, DType::kF32);
  CHECK_ROWS(dx_RE);
  CHECK_ROWS(dw_E);
  CHECK_APART(dx_RE, dy_RE);
  CHECK_APART(dx_RE, x_RE);
  for (const Tensor* t : {&dx_RE, &dy_RE, &x_RE, &w_E}) CHECK_APART(dw_E, *t);
  if (dw_E.size() == 0) return;
  const dim_t blocks = row_blocks(x_RE.dim(0)), E = x_RE.dim(1);
  const Buffer buffer = ctx.memory.take("rmsnorm dw of row blocks", Category::kWorkspace, DType::kF32, {blocks, E});
  const Tensor partial_BE = buffer.tensor(DType::kF32, {blocks, E});
  launch(kBackward, ctx,
         Cost{.bytes = 2 * moved(dx_RE) + moved(dy_RE) + moved(x_RE) + 2 * moved(partial_BE) + 2 * moved(dw_E)}, dx_RE,
         dw_E, dy_RE, x_RE, w_E, eps, accumulate_dw, partial_BE);
}

}  // namespace untied
