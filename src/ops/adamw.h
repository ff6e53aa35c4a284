#pragma once

#include "ops/op.h"

namespace untied {

struct AdamWStep {
  double lr = 0, beta1 = 0.9, beta2 = 0.95, eps = 1e-8, weight_decay = 0;
  double gradient_scale = 1;  // clipping
  dim_t step = 1;             // from 1, for the bias correction
};

// One AdamW update (Loshchilov and Hutter 2019, as PyTorch has it), element-wise over flat buffers of n elements.
// g = scale * grad;  m = b1 m + (1-b1) g;  v = b2 v + (1-b2) g^2;
// w -= lr * weight_decay * w;  w -= lr * (m / (1-b1^t)) / (sqrt(v / (1-b2^t)) + eps).
// master, grad, m, v fp32. working: the activation-type copy of master, written; it may be master itself (fp32 training).
// alias: none other.     cost: 7n floats moved, and working written.
void adamw(Ctx& ctx, const Tensor& working, const Tensor& master, const Tensor& m, const Tensor& v, const Tensor& grad,
           const AdamWStep& step);

}  // namespace untied
