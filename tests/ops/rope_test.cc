#include "ops/rope.h"

#include <gtest/gtest.h>

#include <cmath>

#include "support/backends.h"
#include "support/tolerances.h"

namespace untied::test {
namespace {

// theta^(-i / F), as model/rope.h has it.
std::vector<double> frequencies(dim_t F, double theta) {
  std::vector<double> f(static_cast<std::size_t>(F));
  for (dim_t i = 0; i < F; ++i) f[i] = std::pow(theta, -static_cast<double>(i) / static_cast<double>(F));
  return f;
}

TEST(RopeAngles, EqualLongDoubleAtHugePositions) {
  const std::vector<double> positions{0,   1,       2,       255,     257,     4096,    15962,
                                      1e6, 1000003, 5000000, 9900000, 9999999, 16777217};
  const dim_t R = static_cast<dim_t>(positions.size());
  for (const OnBackend& on : backends())
    for (const double theta : {1e4, 5e5, 1e7})
      for (const dim_t F : {1, 3, 32, 64, 113}) {
        Rank rank(on);
        const auto f = frequencies(F, theta);
        const Tensor cos = rank.put({}, {R, F}, F % 2), sin = rank.put({}, {R, F}, F % 2);
        rope_angles(rank.ctx(), cos, sin, rank.put(positions, DType::kI32, {R}), f);
        std::vector<double> want_cos, want_sin;
        for (double position : positions)
          for (double frequency : f) {
            const long double phase = static_cast<long double>(position) * frequency;
            want_cos.push_back(static_cast<double>(std::cos(phase)));
            want_sin.push_back(static_cast<double>(std::sin(phase)));
          }
        const double near = tolerance("rope angles");
        EXPECT_TRUE(near_all(rank.get(cos), want_cos, near)) << on.name << ", F " << F << ", theta " << theta;
        EXPECT_TRUE(near_all(rank.get(sin), want_sin, near)) << on.name << ", F " << F << ", theta " << theta;
        EXPECT_TRUE(rank.gaps_untouched());
      }
}

// What the test above would catch: the phase formed in fp32.
TEST(RopeAngles, SinglePrecisionPhasesWouldBeFarOff) {
  const float phase = 5000000.0f * static_cast<float>(std::pow(5e5, -1.0 / 64));
  const double exact = std::cos(5e6 * std::pow(5e5, -1.0 / 64));
  EXPECT_GT(std::abs(std::cos(static_cast<double>(phase)) - exact), 1e4 * tolerance("rope angles"));
}

TEST(RopeAngles, ErrorsNameTheShapes) {
  Rank rank;
  const Tensor cos = rank.make(DType::kF32, {3, 4}), sin = rank.make(DType::kF32, {3, 5}),
               positions = rank.put({0, 1, 2}, DType::kI32, {3});
  const std::string text =
      message_of<InternalError>([&] { rope_angles(rank.ctx(), cos, sin, positions, frequencies(4, 1e4)); });
  EXPECT_NE(text.find("fp32[3, 5] for positions int32[3] and 4 frequencies"), std::string::npos) << text;
}

}  // namespace
}  // namespace untied::test
