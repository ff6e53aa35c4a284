#include "ops/heads.h"

#include <gtest/gtest.h>

#include "support/backends.h"
#include "support/ref_ops.h"
#include "support/tolerances.h"

namespace untied::test {
namespace {

struct Heads {
  dim_t R, D;
  int heads;                // of tokens_RH
  std::vector<int> source;  // each at least once
  dim_t gap = 0;
};
const Heads kCases[] = {
    {1, 2, 1, {0}},
    {3, 16, 3, {2, 0, 1}},
    {113, 6, 4, {3, 3, 0, 1, 2, 0, 3}},
    {257, 64, 2, {1, 0, 1, 0}, 3},
    {1025, 2, 5, {4, 3, 2, 1, 0}},
    {33, 226, 2, {0, 1}, 5},
    {0, 4, 1, {0}},
};

struct Angles {
  ref::Values cos, sin;
  Angles(dim_t R, dim_t F)
      : cos(draw(R * F, 8)), sin(draw(R * F, 9)) {  // of any length: the transpose, not the inverse
    for (std::size_t i = 0; i < cos.size(); ++i)
      cos[i] = std::cos(cos[i]), sin[i] = static_cast<float>(std::sin(sin[i]));
  }
};

// Head `h` of token r, turned (direction 0: not at all).
ref::Values head_of(const ref::Values& x, dim_t at, dim_t D, const Angles& angles, dim_t r, double direction) {
  const ref::Values head(x.begin() + at, x.begin() + at + D);
  if (direction == 0) return head;
  const auto row = [&](const ref::Values& a) {
    return ref::Values(a.begin() + r * D / 2, a.begin() + (r + 1) * D / 2);
  };
  return ref::rotate(head, row(angles.cos), row(angles.sin), direction);
}

TEST(Heads, PackAndUnpack) {
  for (const OnBackend& on : backends())
    for (const Heads& c : kCases)
      for (const bool turn : {false, true}) {
        Rank rank(on);
        const dim_t N = static_cast<dim_t>(c.source.size()), width = c.heads * c.D;
        const Angles angles(c.R, c.D / 2);
        const RopeAngles given{rank.put(angles.cos, {c.R, c.D / 2}, c.gap),
                               rank.put(angles.sin, {c.R, c.D / 2}, c.gap)};
        const auto tokens = draw(c.R * width, 1), heads = draw(N * c.R * c.D, 2);
        const char* const what = turn ? "rotate" : "copy";

        const Tensor packed = rank.put({}, on.activations, {N, c.R, c.D}, c.gap);
        heads_pack(rank.ctx(), packed, rank.put(tokens, on.activations, {c.R, width}, c.gap), c.source,
                   turn ? &given : nullptr);
        ref::Values want;
        for (dim_t n = 0; n < N; ++n)
          for (dim_t r = 0; r < c.R; ++r)
            for (double x : head_of(tokens, r * width + c.source[n] * c.D, c.D, angles, r, turn ? 1 : 0))
              want.push_back(x);
        EXPECT_TRUE(near_all(rank.get(packed), want, tolerance(what, on.activations))) << on.name;

        const Tensor unpacked = rank.put({}, on.activations, {c.R, width}, c.gap);
        heads_unpack(rank.ctx(), unpacked, rank.put(heads, {N, c.R, c.D}, c.gap), c.source, turn ? &given : nullptr);
        ref::Values sums(c.R * width);
        for (dim_t n = 0; n < N; ++n)
          for (dim_t r = 0; r < c.R; ++r) {
            const auto head = head_of(heads, (n * c.R + r) * c.D, c.D, angles, r, turn ? -1 : 0);
            for (dim_t d = 0; d < c.D; ++d) sums[r * width + c.source[n] * c.D + d] += head[d];
          }
        EXPECT_TRUE(near_all(rank.get(unpacked), sums, tolerance(N > c.heads ? "sum" : what, on.activations)))
            << on.name;
        EXPECT_TRUE(rank.gaps_untouched());
      }
}

// unpack is pack's transpose: <pack(x), y> = <x, unpack(y)>, so gradients pass through it. In the reference's arithmetic.
TEST(Heads, UnpackIsTheDerivativeOfPack) {
  Rank rank;
  const Heads& c = kCases[2];
  const dim_t N = static_cast<dim_t>(c.source.size()), width = c.heads * c.D;
  const Angles angles(c.R, c.D / 2);
  const RopeAngles given{rank.put(angles.cos, {c.R, c.D / 2}), rank.put(angles.sin, {c.R, c.D / 2})};
  const auto x = draw(c.R * width, 1), y = draw(N * c.R * c.D, 2);
  const Tensor packed = rank.put({}, {N, c.R, c.D}), unpacked = rank.put({}, {c.R, width});
  heads_pack(rank.ctx(), packed, rank.put(x, {c.R, width}), c.source, &given);
  heads_unpack(rank.ctx(), unpacked, rank.put(y, {N, c.R, c.D}), c.source, &given);
  EXPECT_NEAR(ref::dot(rank.get(packed), y), ref::dot(x, rank.get(unpacked)), 1e-4);
}

TEST(Heads, ErrorsNameTheShapes) {
  Rank rank;
  const Tensor heads = rank.make(DType::kF32, {2, 3, 4}), tokens = rank.make(DType::kF32, {3, 8}),
               odd = rank.make(DType::kF32, {3, 10});
  const auto text = [&](const Tensor& in, std::vector<int> source) {
    return message_of<InternalError>([&] { heads_pack(rank.ctx(), heads, in, source, nullptr); });
  };
  EXPECT_NE(text(odd, {0, 1}).find("heads fp32[2, 3, 4] do not make up rows fp32[3, 10]"), std::string::npos);
  EXPECT_NE(text(tokens, {0}).find("1 sources for heads fp32[2, 3, 4]"), std::string::npos);
  EXPECT_NE(text(tokens, {0, 2}).find("source 2 of the 2 heads of fp32[3, 8]"), std::string::npos);
  EXPECT_NE(text(tokens, {0, -1}).find("source -1"), std::string::npos);
  const std::string lost = message_of<InternalError>([&] {
    heads_unpack(rank.ctx(), tokens, heads, std::vector<int>{1, 1}, nullptr);
  });
  EXPECT_NE(lost.find("nothing comes back to head 0 of fp32[3, 8]"), std::string::npos);
  const RopeAngles angles{rank.make(DType::kF32, {3, 2}), rank.make(DType::kF32, {3, 4})};
  const std::string wrong = message_of<InternalError>([&] {
    heads_pack(rank.ctx(), heads, tokens, std::vector<int>{0, 1}, &angles);
  });
  EXPECT_NE(wrong.find("angles fp32[3, 4] for heads fp32[2, 3, 4]"), std::string::npos);
}

}  // namespace
}  // namespace untied::test
