#include "ops/rmsnorm.h"

#include <gtest/gtest.h>

#include "support/backends.h"
#include "support/ref_ops.h"
#include "support/tolerances.h"

namespace untied::test {
namespace {

constexpr double kEps = 1e-5;

const std::array<dim_t, 3> kSizes[] = {
    {1, 1, 0}, {3, 113, 5}, {1023, 3, 0}, {113, 1025, 1}, {1025, 113, 0}};  // R, E, gap

TEST(RmsNorm, Forward) {
  for (const OnBackend& on : backends())
    for (const auto [R, E, gap] : kSizes) {
      Rank rank(on);
      const auto x = draw(R * E, 1, 3), w = draw(E, 2);
      const Tensor x_RE = rank.put(x, on.activations, {R, E}, gap), y_RE = rank.put({}, on.activations, {R, E}, gap);
      const Tensor w_E = rank.put(w, on.activations, {E});
      rmsnorm_forward(rank.ctx(), y_RE, x_RE, w_E, kEps);
      const auto want = ref::rmsnorm(x, w, R, kEps);
      EXPECT_TRUE(near_all(rank.get(y_RE), want, tolerance("rmsnorm", on.activations)))
          << on.name << " " << R << " x " << E;
      const auto apart = rank.get(y_RE);
      rmsnorm_forward(rank.ctx(), x_RE, x_RE, w_E, kEps);
      EXPECT_EQ(rank.get(x_RE), apart) << "in place";
      EXPECT_TRUE(rank.gaps_untouched());
    }
}

TEST(RmsNorm, Backward) {
  for (const OnBackend& on : backends())
    for (const auto [R, E, gap] : kSizes)
      for (const bool add : {false, true}) {
        Rank rank(on);
        const auto x = draw(R * E, 1, 3), w = draw(E, 2), dy = draw(R * E, 3), dx_before = draw(R * E, 4),
                   dw_before = draw(E, 5);
        const Tensor dx_RE = rank.put(dx_before, on.activations, {R, E}, gap);
        const Tensor dw_E = rank.put(add ? dw_before : ref::Values(), {E});
        rmsnorm_backward(rank.ctx(), dx_RE, dw_E, rank.put(dy, on.activations, {R, E}, gap),
                         rank.put(x, on.activations, {R, E}, gap), rank.put(w, on.activations, {E}), kEps,
                         add ? Accumulate::kAdd : Accumulate::kWrite);
        ref::Values dx = dx_before, dw = add ? dw_before : ref::Values(E);
        ref::rmsnorm_backward(dx, dw, dy, x, w, R, kEps);
        EXPECT_TRUE(near_all(rank.get(dx_RE), dx, tolerance("rmsnorm", on.activations)))
            << on.name << " " << R << " x " << E;
        EXPECT_TRUE(near_all(rank.get(dw_E), dw, tolerance("rmsnorm dw", on.activations)))
            << on.name << " " << R << " x " << E;
        EXPECT_TRUE(rank.gaps_untouched());
      }
}

TEST(RmsNorm, ReferenceGradientIsTheDerivative) {
  const dim_t R = 3, E = 7;
  auto x = draw(R * E, 1), w = draw(E, 2);
  const auto dy = draw(R * E, 3);
  const auto loss = [&] { return ref::dot(ref::rmsnorm(x, w, R, kEps), dy); };
  ref::Values dx(R * E), dw(E);
  ref::rmsnorm_backward(dx, dw, dy, x, w, R, kEps);
  for (std::size_t i = 0; i < x.size(); ++i) EXPECT_NEAR(ref::central_difference(x, i, loss), dx[i], 1e-8) << i;
  for (std::size_t i = 0; i < w.size(); ++i) EXPECT_NEAR(ref::central_difference(w, i, loss), dw[i], 1e-8) << i;
}

TEST(RmsNorm, BitsDoNotDependOnThreads) {
  const dim_t R = 1025, E = 113;
  ref::Values dx, dw, y;
  for (int threads : {1, 2, 3, 8}) {
    Rank rank({"", Backend::kCpu, DType::kF32, threads});
    const Tensor x_RE = rank.put(draw(R * E, 1), {R, E}), w_E = rank.put(draw(E, 2), {E}), y_RE = rank.put({}, {R, E});
    const Tensor dx_RE = rank.put(ref::Values(R * E), {R, E}), dw_E = rank.put({}, {E});
    rmsnorm_forward(rank.ctx(), y_RE, x_RE, w_E, kEps);
    rmsnorm_backward(rank.ctx(), dx_RE, dw_E, rank.put(draw(R * E, 3), {R, E}), x_RE, w_E, kEps, Accumulate::kWrite);
    if (threads == 1) dx = rank.get(dx_RE), dw = rank.get(dw_E), y = rank.get(y_RE);
    EXPECT_EQ(rank.get(y_RE), y) << threads;
    EXPECT_EQ(rank.get(dx_RE), dx) << threads;
    EXPECT_EQ(rank.get(dw_E), dw) << threads;
  }
}

TEST(RmsNorm, LargeSmallAndBrokenRows) {
  Rank rank;
  // Zeros stay zeros (eps), large rows do not overflow, and NaN spoils its own row only.
  const Tensor x = rank.put({0, 0, 0, 0, 1e15, -1e15, 1e15, 1e15, 1, kUntouched, 1, 1, 1, 1, 1, 1}, {4, 4});
  rmsnorm_forward(rank.ctx(), x, x, rank.put({1, 1, 1, 1}, {4}), kEps);
  const auto y = rank.get(x);
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(y[i], 0);
    EXPECT_NEAR(std::abs(y[4 + i]), 1, 1e-6);
    EXPECT_TRUE(std::isnan(y[8 + i]));
    EXPECT_NEAR(y[12 + i], 1, 1e-5);
  }
}

TEST(RmsNorm, ErrorsNameTheShapes) {
  Rank rank;
  const Tensor x = rank.make(DType::kF32, {3, 4}), y = rank.make(DType::kF32, {3, 5}), w = rank.make(DType::kF32, {4}),
               v = rank.make(DType::kF32, {5});
  const Tensor dx = rank.make(DType::kF32, {3, 4}), dy = rank.make(DType::kF32, {3, 4}),
               dw = rank.make(DType::kBF16, {4});
  const auto forward = [&](const Tensor& out, const Tensor& weight) {
    return message_of<InternalError>([&] { rmsnorm_forward(rank.ctx(), out, x, weight, kEps); });
  };
  EXPECT_NE(forward(y, w).find("y is fp32[3, 5], x is fp32[3, 4]"), std::string::npos);
  EXPECT_NE(forward(dx, v).find("w is fp32[5], x is fp32[3, 4]"), std::string::npos);
  const auto backward = [&](const Tensor& out, const Tensor& dweight) {
    return message_of<InternalError>(
        [&] { rmsnorm_backward(rank.ctx(), out, dweight, dy, x, w, kEps, Accumulate::kWrite); });
  };
  EXPECT_NE(backward(y, v).find("dx is fp32[3, 5], x is fp32[3, 4]"), std::string::npos);
  EXPECT_NE(backward(dx, v).find("dw is fp32[5], w is fp32[4]"), std::string::npos);
  EXPECT_NE(backward(dx, dw).find("bf16[4], not fp32"), std::string::npos);
  EXPECT_NE(backward(dy, rank.make(DType::kF32, {4})).find("shares memory"), std::string::npos);
}

}  // namespace
}  // namespace untied::test
