// Front half of AdamW: checks, cost, dispatch.
#include "ops/adamw.h"

#include "ops/check.h"

namespace untied {

namespace cpu {
void adamw(Ctx& ctx, const Tensor& working, const Tensor& master, const Tensor& m, const Tensor& v, const Tensor& grad,
           const AdamWStep& step);
}
namespace cuda {
void adamw(Ctx& ctx, const Tensor& working, const Tensor& master, const Tensor& m, const Tensor& v, const Tensor& grad,
           const AdamWStep& step);
}

namespace {

constexpr Kernels<const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&, const AdamWStep&> kAdamW{
    "adamw", cpu::adamw, UNTIED_CUDA_KERNEL(cuda::adamw)};

}  // namespace

void adamw(Ctx& ctx, const Tensor& working, const Tensor& master, const Tensor& m, const Tensor& v, const Tensor& grad,
           const AdamWStep& step) {
  CHECK_RANK(master, 1);
  for (const Tensor* t : {&working, &m, &v, &grad})
    CHECK(t->shape() == master.shape(), "adamw: {} beside master weights {}", t->str(), master.str());
  for (const Tensor* t : {&master, &m, &v, &grad}) CHECK(t->dtype() == DType::kF32, "adamw: {} is not fp32", t->str());
  for (const Tensor* t : {&working, &master, &m, &v, &grad})
    CHECK(has_plain_rows(*t), "adamw: {} is not contiguous", t->str());
  CHECK_ACTIVATION(working);
  CHECK_IN_PLACE(working, master);
  for (const Tensor* t : {&working, &master}) {
    CHECK_APART(*t, m);
    CHECK_APART(*t, v);
    CHECK_APART(*t, grad);
  }
  CHECK_APART(m, v);
  CHECK_APART(m, grad);
  CHECK_APART(v, grad);
  CHECK(step.step >= 1, "adamw: step {} is not counted from 1", step.step);
  if (master.size() == 0) return;
  const bool copies = working.raw() != master.raw();
  launch(kAdamW, ctx, Cost{.bytes = 7 * moved(master) + (copies ? moved(working) : 0)}, working, master, m, v, grad,
         step);
}

}  // namespace untied
