// What the cpu kernels share: the thread team of a rank, rows as Eigen arrays, the one refusal of bf16.
//
// Eigen gives packet versions of exp, sin, cos and sqrt, and reductions in a fixed order of lanes that gcc, without
// -ffast-math, does not. Its own threads are off: a rank decides how many threads it has, and no result may depend on that.
// So every sum lives inside one call of a parallel_for body, over a range that is a function of shapes alone.
#pragma once

#ifndef EIGEN_DONT_PARALLELIZE
#define EIGEN_DONT_PARALLELIZE
#endif
#include <Eigen/Core>
#include <algorithm>
#include <initializer_list>

#include "ops/op.h"

namespace untied::cpu {

// Opening a team costs some microseconds, and more when ranks share cores: not worth it for fewer elements than this a thread.
inline constexpr dim_t kElementsPerThread = 16 * 1024;

// body(i) for i in [0, count), on the rank's threads. `elements` is how much one call handles. The body must not throw.
template <class Body>
void parallel_for(const Ctx& ctx, dim_t count, dim_t elements, Body&& body) {
  const dim_t useful = std::max<dim_t>(1, std::min(count, count * elements / kElementsPerThread));
  [[maybe_unused]] const int threads = static_cast<int>(std::min<dim_t>(ctx.device.threads(), useful));
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
  for (dim_t i = 0; i < count; ++i) body(i);
}

// body(range) over [0, size) in pieces that stay in the L1 cache, so that an update of several steps reads memory once.
template <class Body>
void parallel_pieces(const Ctx& ctx, dim_t size, Body&& body) {
  constexpr dim_t kPiece = 1024;
  parallel_for(ctx, ceil_div(size, kPiece), kPiece, [&](dim_t i) {
    body(Range{i * kPiece, std::min((i + 1) * kPiece, size)});
  });
}

using Array = Eigen::Map<Eigen::ArrayXf>;
using ConstArray = Eigen::Map<const Eigen::ArrayXf>;

inline float* row_of(const Tensor& t, dim_t r) { return t.f32() + r * t.stride(0); }
inline Array row(const Tensor& t, dim_t r) { return {row_of(t, r), t.dim(1)}; }
inline Array flat(const Tensor& t) { return {t.f32(), t.size()}; }

// bf16 on the cpu would be slower than fp32 and only look like the cuda backend's arithmetic.
inline void require_f32(const char* op, std::initializer_list<const Tensor*> tensors) {
  for (const Tensor* t : tensors)
    if (t->dtype() != DType::kF32)
      throw ConfigError("{} of {}: the cpu backend computes in fp32 only (--dtype fp32)", op, t->str());
}

}  // namespace untied::cpu
