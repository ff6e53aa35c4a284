#pragma once

#include <vector>

#include "ops/op.h"

namespace untied {

// cos_RF, sin_RF (fp32, F = D/2) of position * frequency. The phase is formed and reduced in double: at position 5 million an
// fp32 product is off by a quarter of a radian. Within 3e-7 of the exact values up to position 10 million.
// in: positions_R int32; frequencies [D/2] (model/rope.h).     cost: cos and sin written.
void rope_angles(Ctx& ctx, const Tensor& cos_RF, const Tensor& sin_RF, const Tensor& positions_R,
                 const std::vector<double>& frequencies);

struct RopeAngles {
  Tensor cos_RF, sin_RF;
};

}  // namespace untied
