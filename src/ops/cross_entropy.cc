// Front half of the cross entropy: checks, cost, scratch, dispatch.
#include "ops/cross_entropy.h"

#include <cmath>

#include "ops/check.h"

namespace untied {

namespace cpu {
void cross_entropy(Ctx& ctx, const Tensor& loss, const Tensor& logits_RV, const Tensor& targets_R, double scale,
                   const Tensor& loss_R);
}
namespace cuda {
void cross_entropy(Ctx& ctx, const Tensor& loss, const Tensor& logits_RV, const Tensor& targets_R, double scale,
                   const Tensor& loss_R);
}

namespace {

constexpr Kernels<const Tensor&, const Tensor&, const Tensor&, double, const Tensor&> kCrossEntropy{
    "cross_entropy", cpu::cross_entropy, UNTIED_CUDA_KERNEL(cuda::cross_entropy)};

}  // namespace

void cross_entropy(Ctx& ctx, const Tensor& loss, const Tensor& logits_RV, const Tensor& targets_R, double scale) {
  CHECK_RANK(logits_RV, 2);
  CHECK(targets_R.shape() == Shape({logits_RV.dim(0)}), "cross_entropy: targets {} for logits {}", targets_R.str(),
        logits_RV.str());
  CHECK_SHAPE(loss, 1);
  CHECK_DTYPE(loss, DType::kF64);
  CHECK_DTYPE(targets_R, DType::kI32);
  CHECK_ACTIVATION(logits_RV);
  CHECK_ROWS(logits_RV);
  CHECK_ROWS(targets_R);
  CHECK(std::isfinite(scale), "cross_entropy: scale {}", scale);
  const dim_t R = logits_RV.dim(0);
  CHECK(R == 0 || logits_RV.dim(1) > 0, "cross_entropy of {}", logits_RV.str());
  if (R == 0) return;
  const Buffer buffer = ctx.memory.take("loss of rows", Category::kWorkspace, DType::kF64, {R});
  launch(kCrossEntropy, ctx, Cost{.bytes = moved(logits_RV) * (scale == 0 ? 1 : 2) + moved(targets_R)}, loss, logits_RV,
         targets_R, scale, buffer.tensor(DType::kF64, {R}));
}

}  // namespace untied
