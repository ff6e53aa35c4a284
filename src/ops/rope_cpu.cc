// RoPE angles on the cpu. The phase, up to ten million radians, is formed and reduced to [-pi, pi] in double, where it is exact
// to 3e-9; what is left fits a float to 1.2e-7, so the float sin and cos of Eigen's packets do the rest.
#include <numbers>

#include "ops/cpu_kernel.h"
#include "ops/rope.h"

namespace untied::cpu {

void rope_angles(Ctx& ctx, const Tensor& cos_RF, const Tensor& sin_RF, const Tensor& positions_R,
                 const std::vector<double>& frequencies) {
  constexpr double kTurn = 2 * std::numbers::pi;
  const Eigen::Map<const Eigen::ArrayXd> frequency(frequencies.data(), static_cast<dim_t>(frequencies.size()));
  constexpr dim_t kElementsOfWork = 16;  // one angle costs as much as copying this many
  parallel_for(ctx, cos_RF.dim(0), cos_RF.dim(1) * kElementsOfWork, [&](dim_t r) {
    const double position = positions_R.as<std::int32_t>()[r];
    Array cos = row(cos_RF, r), sin = row(sin_RF, r);
    sin = (frequency * position - (frequency * (position / kTurn)).round() * kTurn).cast<float>();
    cos = sin.cos();
    sin = sin.sin();
  });
}

}  // namespace untied::cpu
