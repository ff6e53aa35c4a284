// Front half of rope_angles: checks, cost, dispatch.
#include "ops/rope.h"

#include "ops/check.h"

namespace untied {

namespace cpu {
void rope_angles(Ctx& ctx, const Tensor& cos_RF, const Tensor& sin_RF, const Tensor& positions_R,
                 const std::vector<double>& frequencies);
}
namespace cuda {
void rope_angles(Ctx& ctx, const Tensor& cos_RF, const Tensor& sin_RF, const Tensor& positions_R,
                 const std::vector<double>& frequencies);
}

namespace {

constexpr Kernels<const Tensor&, const Tensor&, const Tensor&, const std::vector<double>&> kAngles{
    "rope_angles", cpu::rope_angles, UNTIED_CUDA_KERNEL(cuda::rope_angles)};

}  // namespace

void rope_angles(Ctx& ctx, const Tensor& cos_RF, const Tensor& sin_RF, const Tensor& positions_R,
                 const std::vector<double>& frequencies) {
  CHECK_RANK(positions_R, 1);
  CHECK_DTYPE(positions_R, DType::kI32);
  CHECK_ROWS(positions_R);
  for (const Tensor* t : {&cos_RF, &sin_RF}) {
    CHECK(t->shape() == Shape({positions_R.dim(0), static_cast<dim_t>(frequencies.size())}),
          "rope_angles: {} for positions {} and {} frequencies", t->str(), positions_R.str(), frequencies.size());
    CHECK(t->dtype() == DType::kF32, "rope_angles: {} is not fp32", t->str());
    CHECK(has_plain_rows(*t), "rope_angles: the rows of {} are not contiguous", t->str());
  }
  CHECK_APART(cos_RF, sin_RF);
  if (cos_RF.size() == 0) return;
  launch(kAngles, ctx, Cost{.bytes = 2 * moved(cos_RF) + moved(positions_R)}, cos_RF, sin_RF, positions_R, frequencies);
}

}  // namespace untied
