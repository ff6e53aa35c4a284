// AdamW on cuda: the operations of adamw_cpu.cc in the same order, scalars formed in double on the host. Bound by memory (30
// bytes an element with a bf16 working copy), so divisions and the root are the accurate ones.
// Sustained: 3,964 GB/s of the 4,173 that a device copy reaches, 95 % (H200, 256 Mi elements, fp32) (`untied bench ops`).
#include <cmath>

#include "ops/adamw.h"
#include "ops/kernel_cuda.cuh"

namespace untied::cuda {
namespace {

template <class T>
struct Update {
  T* working;  // nullptr: the master weights are the working weights
  float *master, *m, *v;
  const float* grad;
  float scale, keep, size, root2, beta2, rest1, rest2, eps;

  template <int N>
  __device__ void run(dim_t, dim_t i) const {
    Floats<N> w = load<N>(master + i), mean = load<N>(m + i), square = load<N>(v + i);
    const Floats<N> g = load<N>(grad + i);
#pragma unroll
    for (int j = 0; j < N; ++j) {
      const float scaled = scale * g.at[j];
      mean.at[j] += rest1 * (scaled - mean.at[j]);
      square.at[j] = beta2 * square.at[j] + rest2 * (scaled * scaled);
      w.at[j] = w.at[j] * keep - size * (mean.at[j] / (sqrtf(square.at[j]) / root2 + eps));
    }
    store(m + i, mean);
    store(v + i, square);
    store(master + i, w);
    if (working) store(working + i, w);
  }
};

}  // namespace

void adamw(Ctx& ctx, const Tensor& working, const Tensor& master, const Tensor& m, const Tensor& v, const Tensor& grad,
           const AdamWStep& step) {
  const double t = static_cast<double>(step.step);
  const double correction1 = 1 - std::pow(step.beta1, t), correction2 = 1 - std::pow(step.beta2, t);
  const bool copies = working.raw() != master.raw();
  with_activation(working.dtype(), [&]<class T>(std::type_identity<T>) {
    walk<kPackOf<float>>(ctx, "adamw", {&master, &working, &m, &v, &grad},
                         Update<T>{.working = copies ? working.as<T>() : nullptr,
                                   .master = master.f32(),
                                   .m = m.f32(),
                                   .v = v.f32(),
                                   .grad = grad.f32(),
                                   .scale = static_cast<float>(step.gradient_scale),
                                   .keep = static_cast<float>(1 - step.lr * step.weight_decay),
                                   .size = static_cast<float>(step.lr / correction1),
                                   .root2 = static_cast<float>(std::sqrt(correction2)),
                                   .beta2 = static_cast<float>(step.beta2),
                                   .rest1 = static_cast<float>(1 - step.beta1),
                                   .rest2 = static_cast<float>(1 - step.beta2),
                                   .eps = static_cast<float>(step.eps)});
  });
}

}  // namespace untied::cuda
