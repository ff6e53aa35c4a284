#include "ops/adamw.h"

#include <gtest/gtest.h>

#include "support/backends.h"
#include "support/ref_ops.h"
#include "support/tolerances.h"

namespace untied::test {
namespace {

const AdamWStep kCases[] = {
    {.lr = 1e-2},
    {.lr = 3e-3, .beta1 = 0.8, .beta2 = 0.999, .eps = 1e-6, .weight_decay = 0.1, .gradient_scale = 0.25},
    {.lr = 1e-1, .beta1 = 0, .beta2 = 0.5, .eps = 1e-8, .weight_decay = 1},
    {.lr = 0, .weight_decay = 0.1},
};

TEST(AdamW, SeveralStepsEqualReference) {
  for (const OnBackend& on : backends())
    for (const dim_t n : {1, 3, 113, 1023, 1025, 40000})
      for (const AdamWStep& options : kCases)
        for (const bool same : {false, true}) {
          if (same && on.activations != DType::kF32) continue;
          Rank rank(on);
          auto w = draw(n, 1), m = ref::Values(n), v = ref::Values(n);
          const Tensor master = rank.put(w, {n}), m_n = rank.put(m, {n}), v_n = rank.put(v, {n});
          const Tensor working = same ? master : rank.put({}, on.activations, {n});
          for (int step = 1; step <= 5; ++step) {
            auto g = draw(n, 10u + static_cast<unsigned>(step), step == 3 ? 100 : 0.1);
            if (step == 4) std::fill(g.begin(), g.end(), 0.0);
            AdamWStep now = options;
            now.step = step;
            adamw(rank.ctx(), working, master, m_n, v_n, rank.put(g, {n}), now);
            for (dim_t i = 0; i < n; ++i)
              ref::adamw(w[i], m[i], v[i], now.gradient_scale * g[i],
                         {now.lr, now.beta1, now.beta2, now.eps, now.weight_decay}, step);
          }
          EXPECT_TRUE(near_all(rank.get(master), w, tolerance("adamw"))) << on.name << " n " << n;
          EXPECT_TRUE(near_all(rank.get(m_n), m, tolerance("adamw"))) << on.name << " n " << n;
          EXPECT_TRUE(near_all(rank.get(v_n), v, tolerance("adamw"))) << on.name << " n " << n;
          EXPECT_TRUE(near_all(rank.get(working), w, tolerance("adamw", on.activations))) << on.name << " n " << n;
        }
}

// By hand, so that the reference is right too: the first step moves a weight by lr * sign(g), less what eps takes, and decays it.
TEST(AdamW, FirstStepByHand) {
  Rank rank;
  const Tensor w = rank.put({1, -2, 3}, {3}), m = rank.put({0, 0, 0}, {3}), v = rank.put({0, 0, 0}, {3});
  adamw(rank.ctx(), w, w, m, v, rank.put({5, -0.25, 0}, {3}),
        {.lr = 0.1, .beta1 = 0.9, .beta2 = 0.99, .weight_decay = 0.5});
  EXPECT_TRUE(near_all(rank.get(w), {0.95 - 0.1, -1.9 + 0.1, 2.85}, 1e-6));
  EXPECT_TRUE(near_all(rank.get(m), {0.5, -0.025, 0}, 1e-6));
  EXPECT_TRUE(near_all(rank.get(v), {0.25, 0.000625, 0}, 1e-6));
}

TEST(AdamW, ErrorsNameTheShapes) {
  Rank rank;
  const Tensor w = rank.make(DType::kF32, {4}), m = rank.make(DType::kF32, {4}), v = rank.make(DType::kF32, {5}),
               g = rank.make(DType::kF32, {4});
  const auto text = [&](const Tensor& second, AdamWStep step = {}) {
    return message_of<InternalError>([&] { adamw(rank.ctx(), w, w, m, second, g, step); });
  };
  EXPECT_NE(text(v).find("fp32[5] beside master weights fp32[4]"), std::string::npos);
  EXPECT_NE(text(m).find("shares memory"), std::string::npos);
  EXPECT_NE(text(rank.make(DType::kF32, {4}), {.step = 0}).find("step 0"), std::string::npos);
}

}  // namespace
}  // namespace untied::test
