// Front half of SwiGLU: checks, cost, dispatch.
#include "ops/swiglu.h"

#include "ops/check.h"

namespace untied {

namespace cpu {
void swiglu_forward(Ctx& ctx, const Tensor& y_RF, const Tensor& gate_RF, const Tensor& up_RF);
void swiglu_backward(Ctx& ctx, const Tensor& y_RF, const Tensor& gate_RF, const Tensor& up_RF, const Tensor& dy_RF);
}  // namespace cpu

namespace cuda {
void swiglu_forward(Ctx& ctx, const Tensor& y_RF, const Tensor& gate_RF, const Tensor& up_RF);
void swiglu_backward(Ctx& ctx, const Tensor& y_RF, const Tensor& gate_RF, const Tensor& up_RF, const Tensor& dy_RF);
}  // namespace cuda

namespace {

constexpr Kernels<const Tensor&, const Tensor&, const Tensor&> kForward{"swiglu_forward", cpu::swiglu_forward,
                                                                        UNTIED_CUDA_KERNEL(cuda::swiglu_forward)};
constexpr Kernels<const Tensor&, const Tensor&, const Tensor&, const Tensor&> kBackward{
    "swiglu_backward", cpu::swiglu_backward, UNTIED_CUDA_KERNEL(cuda::swiglu_backward)};

void check(const Tensor& gate_RF, const Tensor& t) {
  CHECK(t.shape() == gate_RF.shape(), "swiglu: gate is {}, but up, y or dy {}", gate_RF.str(), t.str());
  CHECK_SAME_DTYPE(gate_RF, t);
  CHECK_ROWS(t);
}

}  // namespace

void swiglu_forward(Ctx& ctx, const Tensor& y_RF, const Tensor& gate_RF, const Tensor& up_RF) {
  CHECK_RANK(gate_RF, 2);
  CHECK_ACTIVATION(gate_RF);
  for (const Tensor* t : {&gate_RF, &up_RF, &y_RF}) check(gate_RF, *t);
  CHECK_IN_PLACE(y_RF, gate_RF);
  CHECK_IN_PLACE(y_RF, up_RF);
  if (y_RF.size() == 0) return;
  launch(kForward, ctx, Cost{.bytes = 3 * moved(y_RF)}, y_RF, gate_RF, up_RF);
}

void swiglu_backward(Ctx& ctx, const Tensor& y_RF, const Tensor& gate_RF, const Tensor& up_RF, const Tensor& dy_RF) {
  CHECK_RANK(gate_RF, 2);
  CHECK_ACTIVATION(gate_RF);
  for (const Tensor* t : {&gate_RF, &up_RF, &y_RF, &dy_RF}) check(gate_RF, *t);
  CHECK_IN_PLACE(y_RF, dy_RF);
  CHECK_APART(gate_RF, up_RF);
  for (const Tensor* t : {&y_RF, &dy_RF}) {
    CHECK_APART(gate_RF, *t);
    CHECK_APART(up_RF, *t);
  }
  if (y_RF.size() == 0) return;
  launch(kBackward, ctx, Cost{.bytes = 6 * moved(y_RF)}, y_RF, gate_RF, up_RF, dy_RF);
}

}  // namespace untied
