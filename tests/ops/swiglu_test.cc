#include "ops/swiglu.h"

#include <gtest/gtest.h>

#include "support/backends.h"
#include "support/ref_ops.h"
#include "support/tolerances.h"

namespace untied::test {
namespace {

const std::array<dim_t, 3> kSizes[] = {
    {1, 1, 0}, {3, 113, 5}, {1023, 3, 0}, {17, 1023, 0}, {33, 1025, 1}};  // R, F, gap

struct Data {
  ref::Values gate, up, dy, y, dgate, dup;
  explicit Data(dim_t n) : gate(draw(n, 1, 4)), up(draw(n, 2)), dy(draw(n, 3)), y(n), dgate(n), dup(n) {
    for (dim_t i = 0; i < n; ++i) {
      y[i] = ref::swiglu(gate[i], up[i]);
      dgate[i] = ref::swiglu_dgate(gate[i], up[i], dy[i]);
      dup[i] = ref::swiglu_dup(gate[i], dy[i]);
    }
  }
};

TEST(SwiGlu, Forward) {
  for (const OnBackend& on : backends())
    for (const auto [R, F, gap] : kSizes)
      for (const char* into : {"y", "gate", "up"}) {
        Rank rank(on);
        const Data data(R * F);
        const Tensor gate = rank.put(data.gate, on.activations, {R, F}, gap),
                     up = rank.put(data.up, on.activations, {R, F}, gap);
        const Tensor y = into[0] == 'y' ? rank.put({}, on.activations, {R, F}, gap) : into[0] == 'g' ? gate : up;
        swiglu_forward(rank.ctx(), y, gate, up);
        EXPECT_TRUE(near_all(rank.get(y), data.y, tolerance("swiglu", on.activations))) << on.name << " into " << into;
        EXPECT_TRUE(rank.gaps_untouched());
      }
}

TEST(SwiGlu, Backward) {
  for (const OnBackend& on : backends())
    for (const auto [R, F, gap] : kSizes)
      for (const bool in_place : {false, true}) {
        Rank rank(on);
        const Data data(R * F);
        const Tensor gate = rank.put(data.gate, on.activations, {R, F}, gap),
                     up = rank.put(data.up, on.activations, {R, F}, gap);
        const Tensor dy = rank.put(data.dy, on.activations, {R, F}, gap);
        const Tensor y = in_place ? dy : rank.put({}, on.activations, {R, F}, gap);
        swiglu_backward(rank.ctx(), y, gate, up, dy);
        const double near = tolerance("swiglu", on.activations);
        EXPECT_TRUE(near_all(rank.get(y), data.y, near)) << on.name << (in_place ? " in place" : "");
        EXPECT_TRUE(near_all(rank.get(gate), data.dgate, near)) << on.name << (in_place ? " in place" : "");
        EXPECT_TRUE(near_all(rank.get(up), data.dup, near)) << on.name << (in_place ? " in place" : "");
        EXPECT_TRUE(rank.gaps_untouched());
      }
}

TEST(SwiGlu, ReferenceGradientIsTheDerivative) {
  for (double g : {-30.0, -3.0, -0.1, 0.0, 0.5, 4.0, 25.0}) {
    ref::Values x{g, 1.7};
    const auto loss = [&] { return 1.3 * ref::swiglu(x[0], x[1]); };
    EXPECT_NEAR(ref::central_difference(x, 0, loss), ref::swiglu_dgate(g, 1.7, 1.3), 1e-8);
    EXPECT_NEAR(ref::central_difference(x, 1, loss), ref::swiglu_dup(g, 1.3), 1e-8);
  }
}

TEST(SwiGlu, ExtremeGates) {
  const ref::Values extreme{-1e30, -200, -89, -88, -20, 20, 88, 89, 200, 1e30, kUntouched};
  const dim_t n = static_cast<dim_t>(extreme.size());
  Rank rank;
  const Tensor gate = rank.put(extreme, {1, n}), up = rank.put(ref::Values(n, 1.0), {1, n}), y = rank.put({}, {1, n});
  swiglu_backward(rank.ctx(), y, gate, up, rank.put(ref::Values(n, 1.0), {1, n}));
  const auto got = rank.get(y), dgate = rank.get(gate), dup = rank.get(up);
  for (dim_t i = 0; i + 1 < n; ++i) {
    const double silu = extreme[i] < -100 ? 0 : ref::swiglu(extreme[i], 1);
    EXPECT_NEAR(got[i], silu, 1e-6 * std::max(1.0, silu)) << extreme[i];
    EXPECT_NEAR(dup[i], silu, 1e-6 * std::max(1.0, silu)) << extreme[i];
    EXPECT_NEAR(dgate[i], extreme[i] > 0 ? 1 : 0, 1e-6) << extreme[i];
  }
  EXPECT_TRUE(std::isnan(got[n - 1]) && std::isnan(dgate[n - 1]) && std::isnan(dup[n - 1]));
}

TEST(SwiGlu, ErrorsNameTheShapes) {
  Rank rank;
  const Tensor gate = rank.make(DType::kF32, {3, 4}), up = rank.make(DType::kF32, {3, 5}),
               y = rank.make(DType::kF32, {3, 4});
  const std::string text = message_of<InternalError>([&] { swiglu_forward(rank.ctx(), y, gate, up); });
  EXPECT_NE(text.find("fp32[3, 4]"), std::string::npos);
  EXPECT_NE(text.find("fp32[3, 5]"), std::string::npos);
  const Tensor other = rank.make(DType::kF32, {3, 4});
  EXPECT_NE(message_of<InternalError>([&] { swiglu_backward(rank.ctx(), gate, gate, other, y); }), "");
}

}  // namespace
}  // namespace untied::test
