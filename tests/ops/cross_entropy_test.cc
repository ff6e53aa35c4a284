#include "ops/cross_entropy.h"

#include <gtest/gtest.h>

#include "support/backends.h"
#include "support/ref_ops.h"
#include "support/tolerances.h"

namespace untied::test {
namespace {

ref::Values some_targets(dim_t R, dim_t V) {
  ref::Values targets(R);
  for (dim_t r = 0; r < R; ++r)
    targets[r] = r % 5 == 3 ? -100 : r % 7 == 6 ? -1 : static_cast<double>((r * 31 + 2) % V);
  return targets;
}

TEST(CrossEntropy, LossAndGradient) {
  for (const OnBackend& on : backends())
    for (const auto [R, V, gap] :
         {std::array<dim_t, 3>{1, 1, 0}, {3, 113, 4}, {113, 1025, 0}, {1023, 3, 1}, {5, 4099, 0}})
      for (const double scale : {0.0, 1.0, 1 / 77.0}) {
        Rank rank(on);
        const auto logits = draw(R * V, 1, 4), targets = some_targets(R, V);
        const Tensor loss = rank.put({2.5}, DType::kF64, {1}),
                     logits_RV = rank.put(logits, on.activations, {R, V}, gap);
        cross_entropy(rank.ctx(), loss, logits_RV, rank.put(targets, DType::kI32, {R}), scale);
        const double want = 2.5 + ref::cross_entropy(logits, targets, V);
        EXPECT_NEAR(rank.get(loss)[0], want, want * tolerance("cross entropy", on.activations))
            << on.name << " " << R << " x " << V;
        if (scale != 0) {
          ref::Values got = rank.get(logits_RV), gradient = ref::cross_entropy_backward(logits, targets, V, scale);
          for (ref::Values* values : {&got, &gradient})
            for (double& v : *values) v /= scale;  // the tolerance is for numbers near 1
          EXPECT_TRUE(near_all(got, gradient, tolerance("cross entropy", on.activations)))
              << on.name << " " << R << " x " << V;
        }
        EXPECT_TRUE(rank.gaps_untouched());
      }
}

TEST(CrossEntropy, ReferenceGradientIsTheDerivative) {
  const dim_t R = 4, V = 5;
  auto logits = draw(R * V, 1, 3);
  const ref::Values targets{0, -100, 4, 2};
  const auto gradient = ref::cross_entropy_backward(logits, targets, V, 0.25);
  for (std::size_t i = 0; i < logits.size(); ++i)
    EXPECT_NEAR(ref::central_difference(logits, i, [&] { return 0.25 * ref::cross_entropy(logits, targets, V); }),
                gradient[i], 1e-8);
}

TEST(CrossEntropy, ExtremeLogits) {
  const ref::Values rows{
      1e30, 0,    -1e30,  // certain and right
      1e4,  -1e4, 0,      // certain and wrong
      -1e4, -1e4, -1e4,   // uniform, far down
      3e38, 3e38, -3e38,  // at the end of fp32
      0,    -120, -1e20,  // a target that is all but impossible
  };
  const ref::Values targets{0, 1, 2, 1, 2}, losses{0, 2e4, std::log(3.0), std::log(2.0), 1e20};
  for (dim_t r = 0; r < 5; ++r) {
    Rank rank;
    const ref::Values logits(rows.begin() + 3 * r, rows.begin() + 3 * r + 3);
    const Tensor loss = rank.put({0}, DType::kF64, {1}), logits_RV = rank.put(logits, {1, 3});
    cross_entropy(rank.ctx(), loss, logits_RV, rank.put({targets[r]}, DType::kI32, {1}), 1);
    EXPECT_NEAR(rank.get(loss)[0], losses[r], 1e-6 * std::max(1.0, losses[r])) << r;
    EXPECT_TRUE(near_all(rank.get(logits_RV), ref::cross_entropy_backward(logits, {targets[r]}, 3, 1), 1e-6)) << r;
  }
}

TEST(CrossEntropy, NotANumberReachesTheLoss) {
  for (const double bad : {kUntouched, std::numeric_limits<double>::infinity()})
    for (dim_t where : {0, 3, 8, 20, 39}) {
      Rank rank;
      auto logits = draw(40, 1);
      logits[where] = bad;
      const Tensor loss = rank.put({0}, DType::kF64, {1});
      cross_entropy(rank.ctx(), loss, rank.put(logits, {1, 40}), rank.put({7}, DType::kI32, {1}), 1);
      EXPECT_FALSE(std::isfinite(rank.get(loss)[0])) << bad << " at " << where;
    }
}

TEST(CrossEntropy, BitsDoNotDependOnThreads) {
  const dim_t R = 113, V = 1025;
  ref::Values gradient, first;
  for (int threads : {1, 2, 3, 8}) {
    Rank rank({"", Backend::kCpu, DType::kF32, threads});
    const Tensor loss = rank.put({0}, DType::kF64, {1}), logits_RV = rank.put(draw(R * V, 1), {R, V});
    cross_entropy(rank.ctx(), loss, logits_RV, rank.put(some_targets(R, V), DType::kI32, {R}), 0.5);
    if (threads == 1) gradient = rank.get(logits_RV), first = rank.get(loss);
    EXPECT_EQ(rank.get(logits_RV), gradient) << threads;
    EXPECT_EQ(rank.get(loss), first) << threads;
  }
}

TEST(CrossEntropy, Errors) {
  Rank rank;
  const Tensor loss = rank.put({0}, DType::kF64, {1}), logits = rank.put(draw(6, 1), {2, 3}),
               narrow = rank.put({0}, {1});
  const auto text = [&](const Tensor& into, ref::Values targets) {
    const Tensor ids = rank.put(targets, DType::kI32, {static_cast<dim_t>(targets.size())});
    return message_of<Error>([&] { cross_entropy(rank.ctx(), into, logits, ids, 1); });
  };
  EXPECT_EQ(text(loss, {-100, 3}), "the target of row 1 is 3, the vocabulary has 3 rows");
  EXPECT_NE(text(loss, {0, 0, 0}).find("targets int32[3] for logits fp32[2, 3]"), std::string::npos);
  EXPECT_NE(text(narrow, {0, 0}).find("fp32[1], not fp64"), std::string::npos);
}

}  // namespace
}  // namespace untied::test
