#include "ops/matmul.h"

#include <gtest/gtest.h>

#include "support/backends.h"
#include "support/ref_ops.h"
#include "support/tolerances.h"

namespace untied::test {
namespace {

struct Product {
  dim_t M, N, K;
  bool transpose_a = false, transpose_b = false;
  dim_t gap = 0;

  Shape a() const { return transpose_a ? Shape{K, M} : Shape{M, K}; }
  Shape b() const { return transpose_b ? Shape{N, K} : Shape{K, N}; }
  std::string str() const {
    return format("M {} N {} K {}{}{} gap {}", M, N, K, transpose_a ? " a^T" : "", transpose_b ? " b^T" : "", gap);
  }
};

const Product kProducts[] = {
    {1, 1, 1},     {3, 1, 113}, {1, 113, 3},    {7, 17, 1025}, {113, 1023, 3}, {1025, 3, 33},
    {37, 70, 600}, {6, 16, 8},  {200, 1050, 5}, {12, 32, 256}, {13, 33, 257},  {1, 1023, 113},
};

TEST(Matmul, EqualsReference) {
  for (const OnBackend& on : backends())
    for (Product p : kProducts)
      for (int variant = 0; variant < 16; ++variant) {
        p.transpose_a = variant & 1, p.transpose_b = variant & 2, p.gap = variant & 4 ? 3 : 0;
        const bool add = variant & 8;
        Rank rank(on);
        const auto a = draw(p.M * p.K, 1), b = draw(p.K * p.N, 2);
        auto want = draw(p.M * p.N, 3);
        // What is written must not be read first: it starts as NaN.
        const Tensor c = rank.put(add ? want : ref::Values(), {p.M, p.N}, p.gap);
        matmul(rank.ctx(), c, rank.put(a, on.activations, p.a(), p.gap), rank.put(b, on.activations, p.b(), p.gap),
               {p.transpose_a, p.transpose_b, add ? Accumulate::kAdd : Accumulate::kWrite});
        ref::matmul(want, a, b, p.M, p.N, p.K, p.transpose_a, p.transpose_b, add);
        ASSERT_TRUE(near_all(rank.get(c), want, tolerance("matmul", on.activations)))
            << on.name << ", " << p.str() << (add ? " add" : "");
        ASSERT_TRUE(rank.gaps_untouched()) << p.str();
      }
}

// The same bits for any number of threads.
TEST(Matmul, BitsDoNotDependOnThreads) {
  for (Product p : {Product{100, 90, 700}, Product{331, 257, 129}, Product{5, 1100, 300}, Product{1100, 5, 300}})
    for (int variant = 0; variant < 4; ++variant) {
      p.transpose_a = variant & 1, p.transpose_b = variant & 2;
      const auto a_values = draw(p.M * p.K, 1), b_values = draw(p.K * p.N, 2);
      ref::Values whole;
      for (int threads : {1, 2, 3, 4, 7}) {
        Rank rank({"", Backend::kCpu, DType::kF32, threads});
        const Tensor a = rank.put(a_values, p.a()), b = rank.put(b_values, p.b()), c = rank.put({}, {p.M, p.N});
        matmul(rank.ctx(), c, a, b, {p.transpose_a, p.transpose_b});
        if (whole.empty()) whole = rank.get(c);
        EXPECT_EQ(rank.get(c), whole) << threads << " threads, " << p.str();
      }
    }
}

TEST(Matmul, ColumnsOfOneBufferAreApart) {
  Rank rank;
  const Tensor buffer = rank.put(ref::Values(4 * 6, 1.0), {4, 6}), b = rank.put({1, 0, 0, 2}, {2, 2});
  matmul(rank.ctx(), buffer.slice(1, {4, 6}), buffer.slice(1, {0, 2}), b);
  EXPECT_EQ(rank.get(buffer.slice(1, {4, 6})), ref::Values({1, 2, 1, 2, 1, 2, 1, 2}));
}

TEST(Matmul, EmptySums) {
  Rank rank;
  const Tensor c = rank.put({1, 2, 3, 4}, {2, 2}), a = rank.put({}, {2, 0}), b = rank.put({}, {0, 2});
  matmul(rank.ctx(), c, a, b, {.accumulate = Accumulate::kAdd});
  EXPECT_EQ(rank.get(c), ref::Values({1, 2, 3, 4}));
  matmul(rank.ctx(), c, a, b);
  EXPECT_EQ(rank.get(c), ref::Values(4));
  matmul(rank.ctx(), rank.put({}, {0, 2}), rank.put({}, {0, 3}), rank.put({}, {3, 2}));
}

TEST(Matmul, NotANumberSpreadsOverItsRowAndColumn) {
  Rank rank;
  auto a = draw(20 * 30, 1);
  a[7 * 30 + 5] = kUntouched;
  const Tensor c = rank.put({}, {20, 40});
  matmul(rank.ctx(), c, rank.put(a, {20, 30}), rank.put(draw(30 * 40, 2), {30, 40}));
  const auto got = rank.get(c);
  for (dim_t i = 0; i < 20 * 40; ++i) EXPECT_EQ(std::isnan(got[i]), i / 40 == 7) << i;
}

TEST(Matmul, ErrorsNameTheShapes) {
  Rank rank;
  const Tensor c = rank.make(DType::kF32, {4, 5}), a = rank.make(DType::kF32, {4, 3}),
               b = rank.make(DType::kF32, {3, 5});
  const Tensor b_bf16 = rank.make(DType::kBF16, {3, 5}), c_bf16 = rank.make(DType::kBF16, {4, 5});
  const Tensor ids = rank.make(DType::kI32, {4, 3}), square = rank.make(DType::kF32, {4, 4}),
               wide = rank.make(DType::kF32, {9, 5});
  const auto text = [&](const Tensor& out, const Tensor& left, const Tensor& right, MatmulOptions options = {}) {
    return message_of<InternalError>([&] { matmul(rank.ctx(), out, left, right, options); });
  };
  const auto names = [](const std::string& message, std::initializer_list<const char*> parts) {
    for (const char* part : parts)
      if (message.find(part) == std::string::npos) return false;
    return true;
  };
  EXPECT_TRUE(names(text(c, a, a), {"fp32[4, 5]", "fp32[4, 3]"}));
  EXPECT_TRUE(names(text(c, a, b, {.transpose_a = true}), {"fp32[4, 3]^T", "fp32[3, 5]"}));
  EXPECT_TRUE(names(text(square, a, b), {"fp32[4, 4]", "fp32[4, 3]", "fp32[3, 5]"}));
  EXPECT_TRUE(names(text(c, a, b_bf16), {"fp32[4, 3]", "bf16[3, 5]"}));
  EXPECT_TRUE(names(text(c_bf16, a, b), {"bf16[4, 5]", "fp32[4, 3]"}));
  EXPECT_TRUE(names(text(c, ids, b), {"int32[4, 3]"}));
  EXPECT_TRUE(names(text(c, c, square.slice(1, {0, 4})), {"fp32[4, 5]", "fp32[4, 4]"}));
  EXPECT_TRUE(names(text(square, square, wide.rows(0, 4).slice(1, {0, 4})), {"shares memory"}));
  EXPECT_EQ(text(c, a, b), "");
}

TEST(Bias, ForwardAndBackward) {
  for (const OnBackend& on : backends())
    for (const auto [R, N, gap] :
         {std::array<dim_t, 3>{1, 1, 0}, {3, 113, 2}, {1023, 3, 0}, {113, 1025, 5}, {0, 7, 0}}) {
      Rank rank(on);
      const auto y = draw(R * N, 1), bias = draw(N, 2);
      const Tensor y_RN = rank.put(y, on.activations, {R, N}, gap);
      add_bias(rank.ctx(), y_RN, rank.put(bias, on.activations, {N}));
      auto want = y;
      for (dim_t i = 0; i < R * N; ++i) want[i] += bias[i % N];
      EXPECT_TRUE(near_all(rank.get(y_RN), want, tolerance("bias", on.activations)));

      const Tensor dy = rank.put(y, on.activations, {R, N}, gap), dbias = rank.put({}, {N});
      bias_backward(rank.ctx(), dbias, dy, Accumulate::kWrite);
      auto sums = ref::column_sums(y, R, N);
      EXPECT_TRUE(near_all(rank.get(dbias), sums, tolerance("bias")));
      bias_backward(rank.ctx(), dbias, dy, Accumulate::kAdd);
      for (double& s : sums) s *= 2;
      EXPECT_TRUE(near_all(rank.get(dbias), sums, tolerance("bias")));
      EXPECT_TRUE(rank.gaps_untouched());
    }
}

}  // namespace
}  // namespace untied::test
