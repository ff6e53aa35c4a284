// Front half of the embedding: checks, cost, dispatch.
#include "ops/embedding.h"

#include "ops/check.h"

namespace untied {

namespace cpu {
void embedding_forward(Ctx& ctx, const Tensor& x_TE, const Tensor& ids_T, const Tensor& table_VE);
void embedding_backward(Ctx& ctx, const Tensor& dtable_VE, const Tensor& ids_T, const Tensor& dx_TE);
}  // namespace cpu

namespace cuda {
void embedding_forward(Ctx& ctx, const Tensor& x_TE, const Tensor& ids_T, const Tensor& table_VE);
void embedding_backward(Ctx& ctx, const Tensor& dtable_VE, const Tensor& ids_T, const Tensor& dx_TE);
}  // namespace cuda

namespace {

constexpr Kernels<const Tensor&, const Tensor&, const Tensor&> kForward{"embedding_forward", cpu::embedding_forward,
                                                                        UNTIED_CUDA_KERNEL(cuda::embedding_forward)};
constexpr Kernels<const Tensor&, const Tensor&, const Tensor&> kBackward{"embedding_backward", cpu::embedding_backward,
                                                                         UNTIED_CUDA_KERNEL(cuda::embedding_backward)};

void check(const Tensor& x_TE, const Tensor& ids_T, const Tensor& table_VE) {
  CHECK_RANK(table_VE, 2);
  CHECK(ids_T.rank() == 1 && x_TE.shape() == Shape({ids_T.dim(0), table_VE.dim(1)}),
        "embedding: {} is not a row of {} for each of {}", x_TE.str(), table_VE.str(), ids_T.str());
  CHECK_ACTIVATION(x_TE);
  CHECK_DTYPE(ids_T, DType::kI32);
  CHECK_ROWS(x_TE);
  CHECK_ROWS(ids_T);
  CHECK_ROWS(table_VE);
  CHECK_APART(x_TE, table_VE);
}

}  // namespace

void embedding_forward(Ctx& ctx, const Tensor& x_TE, const Tensor& ids_T, const Tensor& table_VE) {
  check(x_TE, ids_T, table_VE);
  CHECK_SAME_DTYPE(x_TE, table_VE);
  if (x_TE.size() == 0) return;
  launch(kForward, ctx, Cost{.bytes = 2 * moved(x_TE) + moved(ids_T)}, x_TE, ids_T, table_VE);
}

void embedding_backward(Ctx& ctx, const Tensor& dtable_VE, const Tensor& ids_T, const Tensor& dx_TE) {
  check(dx_TE, ids_T, dtable_VE);
  CHECK_DTYPE(dtable_VE, DType::kF32);
  if (dx_TE.size() == 0) return;
  const double rows_of_table = 4.0 * static_cast<double>(dx_TE.size());
  launch(kBackward, ctx, Cost{.bytes = moved(dx_TE) + 2 * rows_of_table + moved(ids_T)}, dtable_VE, ids_T, dx_TE);
}

}  // namespace untied
