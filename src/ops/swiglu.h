#pragma once

#include "ops/op.h"

namespace untied {

// y_RF = silu(gate_RF) * up_RF,  silu(g) = g / (1 + exp(-g)).     all of one activation type; rows may be strided.
// alias: y may be gate or up.     cost: 3RF elements moved.
void swiglu_forward(Ctx& ctx, const Tensor& y_RF, const Tensor& gate_RF, const Tensor& up_RF);

// In place: gate, up become dL/dgate, dL/dup; y_RF = silu(gate) * up is formed again for the weight gradient of what follows.
// in : dy_RF.   alias: y may be dy.
// math: s = 1/(1 + exp(-g)):  dup = dy g s,  dgate = dy up s (1 + g (1 - s)).     cost: 6RF elements moved.
void swiglu_backward(Ctx& ctx, const Tensor& y_RF, const Tensor& gate_RF, const Tensor& up_RF, const Tensor& dy_RF);

}  // namespace untied
