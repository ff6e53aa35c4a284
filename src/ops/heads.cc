// Front half of heads_pack and heads_unpack: checks, cost, dispatch.
#include "ops/heads.h"

#include <algorithm>

#include "ops/check.h"

namespace untied {

namespace cpu {
void heads_pack(Ctx& ctx, const Tensor& heads_NRD, const Tensor& tokens_RH, std::span<const int> source,
                const RopeAngles* angles);
void heads_unpack(Ctx& ctx, const Tensor& tokens_RH, const Tensor& heads_NRD, std::span<const int> source,
                  const RopeAngles* angles);
}  // namespace cpu

namespace cuda {
void heads_pack(Ctx& ctx, const Tensor& heads_NRD, const Tensor& tokens_RH, std::span<const int> source,
                const RopeAngles* angles);
void heads_unpack(Ctx& ctx, const Tensor& tokens_RH, const Tensor& heads_NRD, std::span<const int> source,
                  const RopeAngles* angles);
}  // namespace cuda

namespace {

constexpr Kernels<const Tensor&, const Tensor&, std::span<const int>, const RopeAngles*> kPack{
    "heads_pack", cpu::heads_pack, UNTIED_CUDA_KERNEL(cuda::heads_pack)};
constexpr Kernels<const Tensor&, const Tensor&, std::span<const int>, const RopeAngles*> kUnpack{
    "heads_unpack", cpu::heads_unpack, UNTIED_CUDA_KERNEL(cuda::heads_unpack)};

void check(const Tensor& heads_NRD, const Tensor& tokens_RH, std::span<const int> source, const RopeAngles* angles) {
  CHECK_RANK(heads_NRD, 3);
  CHECK_RANK(tokens_RH, 2);
  const dim_t N = heads_NRD.dim(0), R = heads_NRD.dim(1), D = heads_NRD.dim(2);
  CHECK(D > 0 && tokens_RH.dim(0) == R && tokens_RH.dim(1) % D == 0, "heads {} do not make up rows {}", heads_NRD.str(),
        tokens_RH.str());
  CHECK(static_cast<dim_t>(source.size()) == N, "{} sources for heads {}", source.size(), heads_NRD.str());
  const dim_t heads = tokens_RH.dim(1) / D;
  for (int head : source)
    CHECK(0 <= head && head < heads, "source {} of the {} heads of {}", head, heads, tokens_RH.str());
  CHECK_ACTIVATION(tokens_RH);
  CHECK_ACTIVATION(heads_NRD);
  CHECK_ROWS(heads_NRD);
  CHECK_ROWS(tokens_RH);
  CHECK_APART(heads_NRD, tokens_RH);
  if (!angles) return;
  CHECK(D % 2 == 0, "heads {} of an odd size cannot be rotated", heads_NRD.str());
  for (const Tensor* t : {&angles->cos_RF, &angles->sin_RF}) {
    CHECK(t->shape() == Shape({R, D / 2}) && t->dtype() == DType::kF32, "angles {} for heads {}", t->str(),
          heads_NRD.str());
    CHECK(has_plain_rows(*t), "the rows of angles {} are not contiguous", t->str());
  }
}

Cost cost_of(const Tensor& heads_NRD, const Tensor& tokens_RH, const RopeAngles* angles) {
  const double one_head =
      moved(tokens_RH) / static_cast<double>(tokens_RH.dim(1)) * static_cast<double>(heads_NRD.dim(2));
  const double of_tokens = one_head * static_cast<double>(heads_NRD.dim(0));
  return {.bytes = moved(heads_NRD) + of_tokens + (angles ? moved(angles->cos_RF) + moved(angles->sin_RF) : 0)};
}

}  // namespace

void heads_pack(Ctx& ctx, const Tensor& heads_NRD, const Tensor& tokens_RH, std::span<const int> source,
                const RopeAngles* angles) {
  check(heads_NRD, tokens_RH, source, angles);
  CHECK_SAME_DTYPE(heads_NRD, tokens_RH);
  if (heads_NRD.size() == 0) return;
  launch(kPack, ctx, cost_of(heads_NRD, tokens_RH, angles), heads_NRD, tokens_RH, source, angles);
}

void heads_unpack(Ctx& ctx, const Tensor& tokens_RH, const Tensor& heads_NRD, std::span<const int> source,
                  const RopeAngles* angles) {
  check(heads_NRD, tokens_RH, source, angles);
  CHECK(heads_NRD.dtype() == tokens_RH.dtype() || heads_NRD.dtype() == DType::kF32, "heads_unpack of {} into {}",
        heads_NRD.str(), tokens_RH.str());
  for (int head = 0; head < tokens_RH.dim(1) / heads_NRD.dim(2); ++head)
    CHECK(std::find(source.begin(), source.end(), head) != source.end(),
          "heads_unpack: nothing comes back to head {} of {}", head, tokens_RH.str());
  if (tokens_RH.size() == 0) return;
  launch(kUnpack, ctx, cost_of(heads_NRD, tokens_RH, angles), tokens_RH, heads_NRD, source, angles);
}

}  // namespace untied
