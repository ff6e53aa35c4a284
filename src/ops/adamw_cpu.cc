// AdamW on the cpu: PyTorch's operations in PyTorch's order (torch.optim.adamw, single tensor), scalars formed in double, on
// pieces that stay in L1, so that memory is read and written once. Bound by memory.
#include <cmath>

#include "ops/adamw.h"
#include "ops/cpu_kernel.h"

namespace untied::cpu {

void adamw(Ctx& ctx, const Tensor& working, const Tensor& master, const Tensor& m, const Tensor& v, const Tensor& grad,
           const AdamWStep& step) {
  require_f32("adamw", {&working});
  const double t = static_cast<double>(step.step);
  const double correction1 = 1 - std::pow(step.beta1, t), correction2 = 1 - std::pow(step.beta2, t);
  const float scale = static_cast<float>(step.gradient_scale);
  const float keep = static_cast<float>(1 - step.lr * step.weight_decay);
  const float size = static_cast<float>(step.lr / correction1);
  const float root2 = static_cast<float>(std::sqrt(correction2));
  const float beta2 = static_cast<float>(step.beta2), rest1 = static_cast<float>(1 - step.beta1),
              rest2 = static_cast<float>(1 - step.beta2), eps = static_cast<float>(step.eps);
  const bool copies = working.raw() != master.raw();
  parallel_pieces(ctx, master.size(), [&](Range piece) {
    const auto at = [&](const Tensor& tensor) { return Array(tensor.f32() + piece.begin, piece.size()); };
    Array w = at(master), mean = at(m), square = at(v), g = at(grad);
    mean += rest1 * (scale * g - mean);
    square = beta2 * square + rest2 * (scale * g).square();
    w = w * keep - size * (mean / (square.sqrt() / root2 + eps));
    if (copies) at(working) = w;
  });
}

}  // namespace untied::cpu
