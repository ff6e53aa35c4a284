#include "ops/elementwise.h"

#include <gtest/gtest.h>

#include <cstring>

#include "support/backends.h"
#include "support/ref_ops.h"
#include "support/tolerances.h"

namespace untied::test {
namespace {

const Shape kShapes[] = {{1}, {3}, {1025}, {3, 113}, {113, 1023}, {2, 3, 5}, {2, 3, 7, 11}, {0, 4}};
const DType kTypes[] = {DType::kF32, DType::kBF16};

// To the nearest bf16, ties to even, by arithmetic: 8 bits of mantissa.
double to_bf16(double x) {
  if (x == 0 || !std::isfinite(x)) return x;
  int exponent;
  std::frexp(x, &exponent);
  const double ulp = std::ldexp(1.0, exponent - 8);
  return std::nearbyint(x / ulp) * ulp;
}
ref::Values rounded(ref::Values x, DType dtype) {
  if (dtype == DType::kBF16)
    for (double& v : x) v = to_bf16(v);
  return x;
}

TEST(Elementwise, CastAndAdd) {
  for (const OnBackend& on : backends())
    for (const Shape& shape : kShapes)
      for (const DType to : kTypes)
        for (const DType from : kTypes)
          for (const dim_t gap : {0, 3}) {
            Rank rank(on);
            const auto x = rounded(draw(shape.size(), 1), from), before = rounded(draw(shape.size(), 2), to);
            const Tensor dst = rank.put({}, to, shape, gap), src = rank.put(x, from, shape, gap);
            cast(rank.ctx(), dst, src);
            EXPECT_EQ(rank.get(dst), rounded(x, to)) << on.name << " " << src.str() << " to " << dst.str();

            const Tensor sum = rank.put(before, to, shape, gap);
            add(rank.ctx(), sum, src);
            ref::Values want = before;
            for (std::size_t i = 0; i < x.size(); ++i) want[i] = static_cast<float>(before[i] + x[i]);
            EXPECT_EQ(rank.get(sum), rounded(want, to)) << on.name << " " << src.str() << " onto " << sum.str();
            EXPECT_TRUE(rank.gaps_untouched());
          }
}

TEST(Elementwise, RoundingToBf16) {
  const double inf = std::numeric_limits<double>::infinity(), most = 3.3895313892515355e38;
  const struct {
    double from, to;
  } cases[] = {
      {0, 0},
      {1, 1},
      {1 + 1.0 / 256, 1},
      {1 + 3.0 / 256, 1 + 4.0 / 256},  // ties, to even
      {1 + 1.5 / 256, 1 + 2.0 / 256},
      {-1 - 3.0 / 256, -1 - 4.0 / 256},
      {most, most},
      {3.4e38, inf},
      {inf, inf},
      {-inf, -inf},
      {1e-40, to_bf16(1e-40)},
  };
  for (const auto& c : cases) {
    Rank rank;
    const Tensor dst = rank.put({}, DType::kBF16, {1});
    cast(rank.ctx(), dst, rank.put({c.from}, {1}));
    if (c.from == 1e-40) EXPECT_NEAR(rank.get(dst)[0], c.from, 0x1p-134);  // half the spacing below the normal numbers
    else EXPECT_EQ(rank.get(dst)[0], c.to) << c.from;
  }
  // Every NaN stays one, also those whose bits lie in the lower half only.
  for (const std::uint32_t bits : {0x7f800001u, 0x7fc00000u, 0x7fffffffu, 0xff800001u, 0xffffffffu}) {
    Rank rank;
    const Tensor src = rank.put({0}, {1}), dst = rank.put({0}, DType::kBF16, {1});
    std::memcpy(src.raw(), &bits, sizeof bits);
    cast(rank.ctx(), dst, src);
    EXPECT_TRUE(std::isnan(rank.get(dst)[0])) << bits;
  }
}

TEST(Elementwise, SumOfSquares) {
  ref::Values first;
  for (const dim_t n : {1, 3, 113, 1023, 1025, 16385, 300001}) {
    const auto x = draw(n, 1);
    const double want = 7 + ref::dot(x, x);
    ref::Values bits;
    for (const int threads : {1, 2, 3, 8}) {
      Rank rank({"", Backend::kCpu, DType::kF32, threads});
      const Tensor sum = rank.put({7}, DType::kF64, {1});
      sum_of_squares(rank.ctx(), sum, rank.put(x, {n}));
      if (bits.empty()) bits = rank.get(sum);
      EXPECT_EQ(rank.get(sum), bits) << n << " on " << threads;
      EXPECT_NEAR(rank.get(sum)[0], want, want * tolerance("sum of squares"));
    }
  }
}

TEST(Elementwise, SumOfSquaresShowsWhatIsNotFinite) {
  for (const double bad : {kUntouched, std::numeric_limits<double>::infinity()})
    for (const dim_t where : {0, 8, 16390, 20000}) {
      Rank rank;
      auto x = draw(20001, 1);
      x[where] = bad;
      const Tensor sum = rank.put({0}, DType::kF64, {1});
      sum_of_squares(rank.ctx(), sum, rank.put(x, {20001}));
      EXPECT_FALSE(std::isfinite(rank.get(sum)[0])) << where;
    }
}

TEST(Elementwise, ZeroLeavesTheGaps) {
  Rank rank;
  for (const Shape& shape : kShapes)
    for (const dim_t gap : {0, 3}) {
      const Tensor x = rank.put(draw(shape.size(), 1), shape, gap);
      zero(rank.ctx(), x);
      EXPECT_EQ(rank.get(x), ref::Values(shape.size()));
    }
  EXPECT_TRUE(rank.gaps_untouched());
}

TEST(Elementwise, ErrorsNameTheShapes) {
  Rank rank;
  const Tensor a = rank.make(DType::kF32, {2, 3}), b = rank.make(DType::kF32, {3, 2}),
               ids = rank.make(DType::kI32, {2, 3});
  for (auto* op : {&cast, &add}) {
    const std::string text = message_of<InternalError>([&] { op(rank.ctx(), a, b); });
    EXPECT_NE(text.find("fp32[2, 3] from fp32[3, 2]"), std::string::npos) << text;
    EXPECT_NE(message_of<InternalError>([&] { op(rank.ctx(), a, ids); }), "");
  }
  const Tensor wide = rank.make(DType::kF32, {2, 6});
  EXPECT_NE(message_of<InternalError>([&] {
              add(rank.ctx(), wide.slice(1, {0, 3}), wide.slice(1, {1, 4}));
            }).find("shares memory"),
            std::string::npos);
  const Tensor sum = rank.make(DType::kF64, {1});
  EXPECT_NE(message_of<InternalError>([&] { sum_of_squares(rank.ctx(), sum, wide.slice(1, {0, 3})); }), "");
}

}  // namespace
}  // namespace untied::test
