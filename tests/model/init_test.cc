#include "model/init.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/error.h"

namespace untied {
namespace {

const Parameter kMatrix{.name = "model.layers.0.mlp.up_proj.weight", .shape = {1000, 1000}};

std::vector<float> values(const Parameter& parameter, std::uint64_t seed, Range elements, double init_std = 1) {
  std::vector<float> out(elements.size());
  init_parameter(parameter, init_std, seed, elements, out.data());
  return out;
}

TEST(InitParameter, EachElementIsTheSameInAnyPiece) {
  const std::vector<float> whole = values(kMatrix, 7, {0, 1000});
  for (dim_t step : {1, 3, 113, 999})
    for (dim_t begin = 0; begin < 1000; begin += step) {
      const Range piece = intersect({begin, begin + step}, {0, 1000});
      const std::vector<float> part = values(kMatrix, 7, piece);
      EXPECT_TRUE(std::equal(part.begin(), part.end(), whole.begin() + piece.begin)) << begin << " by " << step;
    }
}

// The same on every machine, compiler and number of ranks: a change here changes everybody's runs.
TEST(InitParameter, Ratchet) {
  const std::vector<float> expected = {0x1.1a2408p-1f, 0x1.2c2344p-2f, -0x1.1b5362p-1f, 0x1.3f5c84p-1f,
                                       0x1.9dc1ep+0f,  0x1.8cf69cp-3f, 0x1.067ec2p-8f,  0x1.156e54p-1f};
  EXPECT_EQ(values(kMatrix, 7, {999'990, 999'998}), expected);
}

TEST(InitParameter, IsNormal) {
  const double init_std = 0.02;
  std::vector<float> x = values(kMatrix, 1, {0, 1'000'000}, init_std);
  const double n = static_cast<double>(x.size());
  double sum[5] = {};
  for (const float v : x)
    for (int k = 1; k <= 4; ++k) sum[k] += std::pow(v / init_std, k);
  // Five standard errors of each moment's mean.
  EXPECT_NEAR(sum[1] / n, 0, 5 * std::sqrt(1 / n));
  EXPECT_NEAR(sum[2] / n, 1, 5 * std::sqrt(2 / n));
  EXPECT_NEAR(sum[3] / n, 0, 5 * std::sqrt(15 / n));
  EXPECT_NEAR(sum[4] / n, 3, 5 * std::sqrt(96 / n));
  // Kolmogorov and Smirnov: beyond 2 / sqrt(n) with probability 7e-4.
  std::sort(x.begin(), x.end());
  double worst = 0;
  for (std::size_t i = 0; i < x.size(); ++i)
    worst = std::max(worst,
                     std::abs(std::erfc(-x[i] / init_std / std::sqrt(2.0)) / 2 - (static_cast<double>(i) + 0.5) / n));
  EXPECT_LT(worst, 2 / std::sqrt(n));
}

TEST(InitParameter, SeedsAndNamesAreIndependent) {
  Parameter other = kMatrix;
  other.name = "model.layers.1.mlp.up_proj.weight";
  const Range range{0, 100'000};
  const std::vector<float> x = values(kMatrix, 0, range);
  for (const std::vector<float>& y : {values(kMatrix, 1, range), values(other, 0, range)}) {
    double product = 0;
    for (std::size_t i = 0; i < x.size(); ++i) product += x[i] * y[i];
    EXPECT_LT(std::abs(product / 1e5), 5 / std::sqrt(1e5));
  }
}

TEST(InitParameter, NormsAreOnesBiasesZeros) {
  EXPECT_EQ(values({.name = "n", .shape = {3}, .init = Init::kOnes}, 0, {1, 3}), (std::vector<float>{1, 1}));
  EXPECT_EQ(values({.name = "b", .shape = {3}, .init = Init::kZeros}, 0, {0, 2}), (std::vector<float>{0, 0}));
}

TEST(InitParameter, ElementsMustBeOfTheParameter) {
  float out = 0;
  EXPECT_THROW(init_parameter(kMatrix, 1, 0, {1'000'000, 1'000'001}, &out), InternalError);
}

}  // namespace
}  // namespace untied
