// Front half of matmul and of bias: checks, cost, workspace, dispatch.
#include "ops/matmul.h"

#include "ops/check.h"

namespace untied {

namespace cpu {
void matmul(Ctx& ctx, const Tensor& c_MN, const Tensor& a, const Tensor& b, MatmulOptions options,
            const Tensor& workspace);
void add_bias(Ctx& ctx, const Tensor& y_RN, const Tensor& bias_N);
void bias_backward(Ctx& ctx, const Tensor& dbias_N, const Tensor& dy_RN, Accumulate accumulate);
}  // namespace cpu

namespace cuda {
void matmul(Ctx& ctx, const Tensor& c_MN, const Tensor& a, const Tensor& b, MatmulOptions options,
            const Tensor& workspace);
void add_bias(Ctx& ctx, const Tensor& y_RN, const Tensor& bias_N);
void bias_backward(Ctx& ctx, const Tensor& dbias_N, const Tensor& dy_RN, Accumulate accumulate);
}  // namespace cuda

namespace {

constexpr Kernels<const Tensor&, const Tensor&, const Tensor&, MatmulOptions, const Tensor&> kMatmul{
    "matmul", cpu::matmul, UNTIED_CUDA_KERNEL(cuda::matmul)};
constexpr Kernels<const Tensor&, const Tensor&> kAddBias{"add_bias", cpu::add_bias, UNTIED_CUDA_KERNEL(cuda::add_bias)};
constexpr Kernels<const Tensor&, const Tensor&, Accumulate> kBiasBackward{"bias_backward", cpu::bias_backward,
                                                                          UNTIED_CUDA_KERNEL(cuda::bias_backward)};

const char* name_of_op(bool transposed) { return transposed ? "^T" : ""; }

}  // namespace

dim_t matmul_workspace(Backend target) { return target == Backend::kCuda ? dim_t{32} << 20 : 0; }

void matmul(Ctx& ctx, const Tensor& c_MN, const Tensor& a, const Tensor& b, MatmulOptions options) {
  const auto [transpose_a, transpose_b, accumulate] = options;
  for (const Tensor* t : {&c_MN, &a, &b}) CHECK(t->rank() == 2, "matmul of {}: not a matrix", t->str());
  const dim_t M = a.dim(transpose_a ? 1 : 0), K = a.dim(transpose_a ? 0 : 1), N = b.dim(transpose_b ? 0 : 1);
  CHECK(K == b.dim(transpose_b ? 1 : 0) && c_MN.shape() == Shape({M, N}), "matmul: {} is not {}{} times {}{}",
        c_MN.str(), a.str(), name_of_op(transpose_a), b.str(), name_of_op(transpose_b));
  CHECK_ACTIVATION(a);
  CHECK_SAME_DTYPE(a, b);
  CHECK(c_MN.dtype() == a.dtype() || c_MN.dtype() == DType::kF32, "matmul: {} of {} and {}", c_MN.str(), a.str(),
        b.str());
  CHECK_ROWS(c_MN);
  CHECK_ROWS(a);
  CHECK_ROWS(b);
  CHECK_APART(c_MN, a);
  CHECK_APART(c_MN, b);
  if (c_MN.size() == 0) return;

  const Cost cost{2.0 * static_cast<double>(M) * static_cast<double>(N) * static_cast<double>(K),
                  moved(a) + moved(b) + moved(c_MN) * (accumulate == Accumulate::kAdd ? 2 : 1)};
  const dim_t bytes = matmul_workspace(ctx.device.target());
  const Buffer buffer = bytes > 0 ? ctx.memory.take("matmul workspace", Category::kWorkspace, bytes) : Buffer();
  launch(kMatmul, ctx, cost, c_MN, a, b, options, Tensor(buffer.data(), DType::kU8, {bytes}));
}

void add_bias(Ctx& ctx, const Tensor& y_RN, const Tensor& bias_N) {
  CHECK_RANK(y_RN, 2);
  CHECK(bias_N.shape() == Shape({y_RN.dim(1)}), "add_bias of {} to {}", bias_N.str(), y_RN.str());
  CHECK_ACTIVATION(y_RN);
  CHECK_SAME_DTYPE(y_RN, bias_N);
  CHECK_ROWS(y_RN);
  CHECK_ROWS(bias_N);
  CHECK_APART(y_RN, bias_N);
  if (y_RN.size() == 0) return;
  launch(kAddBias, ctx, Cost{.bytes = 2 * moved(y_RN) + moved(bias_N)}, y_RN, bias_N);
}

void bias_backward(Ctx& ctx, const Tensor& dbias_N, const Tensor& dy_RN, Accumulate accumulate) {
  CHECK_RANK(dy_RN, 2);
  CHECK(dbias_N.shape() == Shape({dy_RN.dim(1)}), "bias_backward of {} into {}", dy_RN.str(), dbias_N.str());
  CHECK_DTYPE(dbias_N, DType::kF32);
  CHECK_ACTIVATION(dy_RN);
  CHECK_ROWS(dy_RN);
  CHECK_ROWS(dbias_N);
  CHECK_APART(dbias_N, dy_RN);
  if (dbias_N.size() == 0) return;
  launch(kBiasBackward, ctx, Cost{.bytes = moved(dy_RN) + 2 * moved(dbias_N)}, dbias_N, dy_RN, accumulate);
}

}  // namespace untied
