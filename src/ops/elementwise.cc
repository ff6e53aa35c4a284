// Front half of the small ones: checks, cost, scratch, dispatch.
#include "ops/elementwise.h"

#include <algorithm>

#include "ops/check.h"

namespace untied {

namespace cpu {
void cast(Ctx& ctx, const Tensor& dst, const Tensor& src);
void add(Ctx& ctx, const Tensor& dst, const Tensor& src);
void sum_of_squares(Ctx& ctx, const Tensor& sum, const Tensor& x, const Tensor& partial_B);
}  // namespace cpu

namespace cuda {
void cast(Ctx& ctx, const Tensor& dst, const Tensor& src);
void add(Ctx& ctx, const Tensor& dst, const Tensor& src);
void sum_of_squares(Ctx& ctx, const Tensor& sum, const Tensor& x, const Tensor& partial_B);
}  // namespace cuda

namespace {

constexpr Kernels<const Tensor&, const Tensor&> kCast{"cast", cpu::cast, UNTIED_CUDA_KERNEL(cuda::cast)};
constexpr Kernels<const Tensor&, const Tensor&> kAdd{"add", cpu::add, UNTIED_CUDA_KERNEL(cuda::add)};
constexpr Kernels<const Tensor&, const Tensor&, const Tensor&> kSumOfSquares{"sum_of_squares", cpu::sum_of_squares,
                                                                             UNTIED_CUDA_KERNEL(cuda::sum_of_squares)};

void check(const char* op, const Tensor& dst, const Tensor& src) {
  CHECK(dst.defined() && dst.shape() == src.shape(), "{}: {} from {}", op, dst.str(), src.str());
  CHECK_ACTIVATION(dst);
  CHECK_ACTIVATION(src);
  CHECK_ROWS(dst);
  CHECK_ROWS(src);
}

// x is cut into blocks, each with its own partial sum: enough for every core and multiprocessor.
dim_t blocks_of(dim_t elements) {
  constexpr dim_t kLeastElements = 16 * 1024, kMostBlocks = 1024;
  return std::clamp<dim_t>(ceil_div(elements, kLeastElements), 1, kMostBlocks);
}

}  // namespace

void cast(Ctx& ctx, const Tensor& dst, const Tensor& src) {
  check("cast", dst, src);
  CHECK_APART(dst, src);
  if (dst.size() == 0) return;
  launch(kCast, ctx, Cost{.bytes = moved(dst) + moved(src)}, dst, src);
}

void add(Ctx& ctx, const Tensor& dst, const Tensor& src) {
  check("add", dst, src);
  CHECK_IN_PLACE(dst, src);
  if (dst.size() == 0) return;
  launch(kAdd, ctx, Cost{.bytes = 2 * moved(dst) + moved(src)}, dst, src);
}

void sum_of_squares(Ctx& ctx, const Tensor& sum, const Tensor& x) {
  CHECK_SHAPE(sum, 1);
  CHECK_DTYPE(sum, DType::kF64);
  CHECK(x.defined() && x.is_contiguous(), "sum_of_squares of {}: not contiguous", x.str());
  CHECK_DTYPE(x, DType::kF32);
  if (x.size() == 0) return;
  const dim_t blocks = blocks_of(x.size());
  const Buffer buffer = ctx.memory.take("sums of blocks", Category::kWorkspace, DType::kF64, {blocks});
  launch(kSumOfSquares, ctx, Cost{.bytes = moved(x)}, sum, x, buffer.tensor(DType::kF64, {blocks}));
}

void zero(Ctx& ctx, const Tensor& dst) {
  CHECK(dst.defined(), "zero of no tensor");
  CHECK_ROWS(dst);
  ctx.trace.bytes_moved += moved(dst);
  ++ctx.trace.ops;
  ctx.device.zero(StreamKind::kCompute, dst);
}

}  // namespace untied
