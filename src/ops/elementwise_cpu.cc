// The small ones on the cpu. bf16 appears here and nowhere else on the cpu: checkpoints and collectives may carry it.
#include <bit>
#include <type_traits>

#include "ops/cpu_kernel.h"
#include "ops/elementwise.h"

namespace untied::cpu {
namespace {

struct BF16 {
  std::uint16_t bits;
};

inline float load(float x) { return x; }
inline float load(BF16 x) { return std::bit_cast<float>(static_cast<std::uint32_t>(x.bits) << 16); }

// To the nearest, ties to even; NaN stays one.
inline void store(float& to, float x) { to = x; }
inline void store(BF16& to, float x) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(x);
  const std::uint32_t rounded = (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
  const std::uint32_t nan = bits >> 16 | 0x40u;
  to.bits = static_cast<std::uint16_t>((bits & 0x7fffffffu) > 0x7f800000u ? nan : rounded);
}

// The element at which run i of the last dimension begins.
dim_t begin_of_run(const Tensor& t, dim_t i) {
  dim_t at = 0;
  for (int d = t.rank() - 2; d >= 0; --d) {
    at += i % t.dim(d) * t.stride(d);
    i /= t.dim(d);
  }
  return at;
}

// body(address in dst, address in src, count) over runs that are contiguous in both.
template <class Dst, class Src, class Body>
void for_runs(const Ctx& ctx, const Tensor& dst, const Tensor& src, Body&& body) {
  if (dst.is_contiguous() && src.is_contiguous()) {
    parallel_pieces(ctx, dst.size(),
                    [&](Range piece) { body(dst.as<Dst>() + piece.begin, src.as<Src>() + piece.begin, piece.size()); });
    return;
  }
  const dim_t run = dst.dim(dst.rank() - 1);
  parallel_for(ctx, dst.size() / run, run,
               [&](dim_t i) { body(dst.as<Dst>() + begin_of_run(dst, i), src.as<Src>() + begin_of_run(src, i), run); });
}

// body(type of dst, type of src) with the tensors' element types.
template <class Body>
void with_types(const Tensor& dst, const Tensor& src, Body&& body) {
  const auto with_src = [&](auto d) { src.dtype() == DType::kF32 ? body(d, float{}) : body(d, BF16{}); };
  dst.dtype() == DType::kF32 ? with_src(float{}) : with_src(BF16{});
}

}  // namespace

void cast(Ctx& ctx, const Tensor& dst, const Tensor& src) {
  with_types(dst, src, [&](auto d, auto s) {
    for_runs<decltype(d), decltype(s)>(ctx, dst, src, [](auto* to, const auto* from, dim_t count) {
      for (dim_t i = 0; i < count; ++i) store(to[i], load(from[i]));
    });
  });
}

void add(Ctx& ctx, const Tensor& dst, const Tensor& src) {
  with_types(dst, src, [&](auto d, auto s) {
    for_runs<decltype(d), decltype(s)>(ctx, dst, src, [](auto* to, const auto* from, dim_t count) {
      for (dim_t i = 0; i < count; ++i) store(to[i], load(to[i]) + load(from[i]));
    });
  });
}

void sum_of_squares(Ctx& ctx, const Tensor& sum, const Tensor& x, const Tensor& partial_B) {
  const dim_t n = x.size(), B = partial_B.size();
  double* const partial = partial_B.as<double>();
  parallel_for(ctx, B, ceil_div(n, B), [&](dim_t block) {
    const dim_t begin = n / B * block + std::min(n % B, block), count = n / B + (block < n % B ? 1 : 0);
    partial[block] = ConstArray(x.f32() + begin, count).cast<double>().square().sum();
  });
  for (dim_t block = 0; block < B; ++block) *sum.as<double>() += partial[block];
}

}  // namespace untied::cpu
