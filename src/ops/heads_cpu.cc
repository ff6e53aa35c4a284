// heads_pack and heads_unpack on the cpu: token by token, so that a token's angles and its row of heads are read once; each
// head is one contiguous run of D on both sides.
#include "ops/cpu_kernel.h"
#include "ops/heads.h"

namespace untied::cpu {
namespace {

float* run_of(const Tensor& heads_NRD, dim_t n, dim_t r) {
  return heads_NRD.f32() + n * heads_NRD.stride(0) + r * heads_NRD.stride(1);
}

// out = in with pairs (d, d + F) turned by the angles times `direction`; out may be in.
void rotate(float* out, const float* in, const RopeAngles& angles, dim_t r, float direction) {
  const dim_t F = angles.cos_RF.dim(1);
  const float* const cos = row_of(angles.cos_RF, r);
  const float* const sin = row_of(angles.sin_RF, r);
#pragma GCC ivdep
  for (dim_t f = 0; f < F; ++f) {
    const float first = in[f], second = in[F + f], s = direction * sin[f];
    out[f] = first * cos[f] - second * s;
    out[F + f] = second * cos[f] + first * s;
  }
}

}  // namespace

void heads_pack(Ctx& ctx, const Tensor& heads_NRD, const Tensor& tokens_RH, std::span<const int> source,
                const RopeAngles* angles) {
  require_f32("heads_pack", {&heads_NRD, &tokens_RH});
  const dim_t N = heads_NRD.dim(0), R = heads_NRD.dim(1), D = heads_NRD.dim(2);
  parallel_for(ctx, R, N * D, [&](dim_t r) {
    for (dim_t n = 0; n < N; ++n) {
      const float* const in = row_of(tokens_RH, r) + source[n] * D;
      float* const out = run_of(heads_NRD, n, r);
      if (angles) rotate(out, in, *angles, r, +1);
      else std::copy_n(in, D, out);
    }
  });
}

void heads_unpack(Ctx& ctx, const Tensor& tokens_RH, const Tensor& heads_NRD, std::span<const int> source,
                  const RopeAngles* angles) {
  require_f32("heads_unpack", {&heads_NRD, &tokens_RH});
  const dim_t N = heads_NRD.dim(0), R = heads_NRD.dim(1), D = heads_NRD.dim(2), H = tokens_RH.dim(1) / D;
  std::vector<bool> is_first(N);  // of those with its source: it writes, the others add
  for (dim_t n = 0; n < N; ++n)
    is_first[n] = std::find(source.begin(), source.begin() + n, source[n]) == source.begin() + n;
  parallel_for(ctx, R, N * D, [&](dim_t r) {
    for (dim_t n = 0; n < N; ++n) {
      const ConstArray in(run_of(heads_NRD, n, r), D);
      Array out(row_of(tokens_RH, r) + source[n] * D, D);
      if (is_first[n]) out = in;
      else out += in;
    }
    if (!angles) return;
    for (dim_t h = 0; h < H; ++h) rotate(row_of(tokens_RH, r) + h * D, row_of(tokens_RH, r) + h * D, *angles, r, -1);
  });
}

}  // namespace untied::cpu
