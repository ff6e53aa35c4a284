#include "tensor/tensor.h"

#include <gtest/gtest.h>

#include <numeric>
#include <vector>

namespace untied {
namespace {

// 2 x 3 x 4 numbers that say where they are: element (i, j, k) is 12 i + 4 j + k.
struct Numbers {
  std::vector<float> data = std::vector<float>(24);
  Tensor tensor{data.data(), DType::kF32, {2, 3, 4}};
  Numbers() { std::iota(data.begin(), data.end(), 0.0f); }
};

TEST(Shape, SizeAndText) {
  EXPECT_EQ(Shape({4096, 32, 128}).str(), "[4096, 32, 128]");
  EXPECT_EQ(Shape({4096, 32, 128}).size(), 16777216);
  EXPECT_EQ(Shape({5, 0}).size(), 0);
  EXPECT_EQ(Shape().size(), 0);
  EXPECT_EQ(Shape({10'000'000, 128'256}).size(), 1'282'560'000'000);
  EXPECT_TRUE(Shape({2, 3}) == Shape({2, 3}));
  EXPECT_FALSE(Shape({2, 3}) == Shape({2, 3, 1}));
  EXPECT_THROW(Shape({-1}), InternalError);
  EXPECT_THROW(Shape({1, 1, 1, 1, 1}), InternalError);
}

TEST(DTypes, SizesAndNames) {
  EXPECT_EQ(size_of(DType::kF32), 4u);
  EXPECT_EQ(size_of(DType::kBF16), 2u);
  EXPECT_EQ(size_of(DType::kF64), 8u);
  EXPECT_STREQ(name_of(DType::kBF16), "bf16");
}

TEST(Tensor, NewOnesAreContiguous) {
  Numbers n;
  EXPECT_TRUE(n.tensor.is_contiguous());
  EXPECT_EQ(n.tensor.stride(0), 12);
  EXPECT_EQ(n.tensor.stride(1), 4);
  EXPECT_EQ(n.tensor.stride(2), 1);
  EXPECT_EQ(n.tensor.bytes(), 96);
  EXPECT_EQ(n.tensor.str(), "fp32[2, 3, 4]");
  EXPECT_FALSE(Tensor().defined());
}

TEST(Tensor, SlicesKeepStrides) {
  Numbers n;
  const Tensor s = n.tensor.slice(1, {1, 3});
  EXPECT_EQ(s.shape(), Shape({2, 2, 4}));
  EXPECT_EQ(*s.f32(), 4);
  EXPECT_EQ(s.stride(0), 12);
  EXPECT_FALSE(s.is_contiguous());
  EXPECT_TRUE(n.tensor.rows(1, 2).is_contiguous());
  EXPECT_TRUE(n.tensor.slice(0, {1, 2}).slice(1, {1, 2}).is_contiguous());  // a stride that nobody steps over
  EXPECT_EQ(*n.tensor.slice(2, {3, 4}).slice(1, {2, 3}).rows(1, 2).f32(), 23);
  EXPECT_EQ(n.tensor.rows(2, 2).size(), 0);
  for (const auto& bad : {Range{-1, 1}, Range{1, 3}, Range{2, 1}}) EXPECT_THROW(n.tensor.rows(bad), InternalError);
  EXPECT_THROW(n.tensor.slice(3, {0, 1}), InternalError);
}

TEST(Tensor, IndexDropsTheFirstDimension) {
  Numbers n;
  const Tensor row = n.tensor.slice(1, {1, 3}).index(1).index(1);
  EXPECT_EQ(row.shape(), Shape({4}));
  EXPECT_EQ(*row.f32(), 20);
  const Tensor strided = n.tensor.slice(2, {1, 3}).index(1);
  EXPECT_EQ(strided.stride(0), 4);
  EXPECT_EQ(*strided.index(2).f32(), 21);
  EXPECT_THROW(n.tensor.index(2), InternalError);
  EXPECT_THROW(row.index(0), InternalError);
}

TEST(Tensor, ReshapeNeedsContiguousAndEqualSize) {
  Numbers n;
  EXPECT_EQ(n.tensor.reshape({6, 4}).stride(0), 4);
  EXPECT_EQ(n.tensor.flat().shape(), Shape({24}));
  EXPECT_THROW(n.tensor.reshape({5, 5}), InternalError);
  EXPECT_THROW(n.tensor.slice(2, {0, 2}).reshape({12}), InternalError);
}

TEST(Tensor, AddressesBeyond32Bits) {
  std::byte* const base = reinterpret_cast<std::byte*>(std::uintptr_t{1} << 46);
  const Tensor logits(base, DType::kBF16, {10'000'000, 128'256});
  EXPECT_EQ(static_cast<std::byte*>(logits.rows(9'999'999, 10'000'000).raw()) - base, dim_t{9'999'999} * 128'256 * 2);
}

TEST(CheckShape, MessageNamesBoth) {
  Numbers n;
  const Tensor& q_THD = n.tensor;
  EXPECT_NO_THROW(CHECK_SHAPE(q_THD, 2, 3, 4));
  try {
    CHECK_SHAPE(q_THD, 2, 4, 3);
    FAIL();
  } catch (const InternalError& e) {
    EXPECT_NE(std::string(e.what()).find("q_THD is fp32[2, 3, 4], not [2, 4, 3]"), std::string::npos) << e.what();
  }
}

}  // namespace
}  // namespace untied
