#include "io/file_dtype.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "files.h"

namespace untied {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

TEST(FileDType, NamesGoBothWays) {
  int count = 0;
  for (int i = 0; i <= static_cast<int>(FileDType::kU64); ++i, ++count) {
    const auto dtype = static_cast<FileDType>(i);
    EXPECT_EQ(file_dtype_named(name_of(dtype)), dtype) << name_of(dtype);
  }
  EXPECT_EQ(count, 22);
  EXPECT_EQ(file_dtype_named("bf16"), std::nullopt);
  EXPECT_EQ(bits_of(FileDType::kF6E2M3), 6);
  EXPECT_TRUE(is_readable(FileDType::kF64));
  EXPECT_FALSE(is_writable(FileDType::kF64));
  EXPECT_FALSE(is_readable(FileDType::kF8E4M3));
  EXPECT_EQ(file_dtype(DType::kBF16), FileDType::kBF16);
  EXPECT_THROW(file_dtype(DType::kI32), InternalError);
}

// What a 16-bit pattern stands for, from the definition of the format.
float decode(std::uint16_t bits, int mantissa_bits) {
  const int exponent_bits = 15 - mantissa_bits, bias = (1 << (exponent_bits - 1)) - 1;
  const int exponent = bits >> mantissa_bits & ((1 << exponent_bits) - 1);
  const int mantissa = bits & ((1 << mantissa_bits) - 1);
  const float sign = bits >> 15 ? -1.0f : 1.0f;
  if (exponent == (1 << exponent_bits) - 1) return mantissa ? std::nanf("") : sign * kInf;
  return sign * (exponent
                     ? std::ldexp(static_cast<float>(mantissa + (1 << mantissa_bits)), exponent - bias - mantissa_bits)
                     : std::ldexp(static_cast<float>(mantissa), 1 - bias - mantissa_bits));
}

struct SixteenBits {
  FileDType dtype;
  int mantissa_bits;
};
class SixteenBitTest : public testing::TestWithParam<SixteenBits> {};
INSTANTIATE_TEST_SUITE_P(Formats, SixteenBitTest,
                         testing::Values(SixteenBits{FileDType::kBF16, 7}, SixteenBits{FileDType::kF16, 10}),
                         [](const auto& info) { return std::string(name_of(info.param.dtype)); });

TEST_P(SixteenBitTest, AllPatternsDecodeAndComeBack) {
  std::vector<std::byte> unaligned(2 * 65536 + 1), back(2 * 65536 + 1);
  for (int i = 0; i < 65536; ++i) {
    const auto bits = static_cast<std::uint16_t>(i);
    std::memcpy(&unaligned[1 + 2 * i], &bits, 2);
  }
  std::vector<float> values(65536);
  to_f32(&unaligned[1], GetParam().dtype, values.size(), values.data());
  from_f32(values.data(), GetParam().dtype, values.size(), &back[1]);
  for (int i = 0; i < 65536; ++i) {
    const float expected = decode(static_cast<std::uint16_t>(i), GetParam().mantissa_bits);
    if (std::isnan(expected)) {
      float again;
      to_f32(&back[1 + 2 * i], GetParam().dtype, 1, &again);
      ASSERT_TRUE(std::isnan(values[i]) && std::isnan(again)) << i;
    } else {
      ASSERT_EQ(values[i], expected) << i;
      ASSERT_EQ(std::signbit(values[i]), std::signbit(expected)) << i;
      ASSERT_EQ(std::memcmp(&back[1 + 2 * i], &unaligned[1 + 2 * i], 2), 0) << i;
    }
  }
}

TEST_P(SixteenBitTest, RoundsToNearestTiesToEven) {
  const auto rounded = [&](float value) {
    std::byte bytes[2];
    float result;
    from_f32(&value, GetParam().dtype, 1, bytes);
    to_f32(bytes, GetParam().dtype, 1, &result);
    return result;
  };
  const auto next = [&](std::uint16_t bits) {
    return decode(static_cast<std::uint16_t>(bits + 1), GetParam().mantissa_bits);
  };
  std::mt19937 random(1);
  for (int i = 0; i < 20'000; ++i) {
    // Between two neighbours, of any magnitude, subnormals included; the last one is infinite in neither format.
    const auto low_bits = static_cast<std::uint16_t>(random() % 0x7bff);
    const float low = decode(low_bits, GetParam().mantissa_bits), high = next(low_bits);
    const float middle = low + (high - low) / 2;
    ASSERT_EQ(rounded(middle), low_bits % 2 == 0 ? low : high) << low;
    if (low == 0) continue;  // the middle is a subnormal with no room around it
    ASSERT_EQ(rounded(std::nextafter(middle, 0.0f)), low) << low;
    ASSERT_EQ(rounded(-std::nextafter(middle, kInf)), -high) << low;
  }
  EXPECT_EQ(rounded(std::numeric_limits<float>::max()), kInf);
  EXPECT_EQ(rounded(-kInf), -kInf);
  EXPECT_TRUE(std::isnan(rounded(std::nanf(""))));
  float quiet_with_low_payload;  // dropping the low bits alone would make it infinite
  const std::uint32_t bits = 0x7f800001;
  std::memcpy(&quiet_with_low_payload, &bits, 4);
  EXPECT_TRUE(std::isnan(rounded(quiet_with_low_payload)));
}

TEST(FileDType, WideFormats) {
  const std::vector<float> values = {0.0f, -0.0f, 1.5f, -kInf, 1e-45f, 3.4e38f};
  std::vector<std::byte> bytes(values.size() * 4 + 1);
  std::vector<float> back(values.size());
  from_f32(values.data(), FileDType::kF32, values.size(), &bytes[1]);
  to_f32(&bytes[1], FileDType::kF32, values.size(), back.data());
  EXPECT_EQ(std::memcmp(values.data(), back.data(), 4 * values.size()), 0);

  const std::vector<double> doubles = {0.1, 1 + 0x1p-24, 1 + 0x3p-24, 1e300};
  std::vector<std::byte> double_bytes(doubles.size() * 8 + 3);
  std::memcpy(&double_bytes[3], doubles.data(), 8 * doubles.size());
  std::vector<float> floats(doubles.size());
  to_f32(&double_bytes[3], FileDType::kF64, doubles.size(), floats.data());
  EXPECT_EQ(floats, (std::vector<float>{0.1f, 1.0f, 1 + 0x1p-22f, kInf}));

  to_f32(nullptr, FileDType::kF32, 0, nullptr);
  from_f32(nullptr, FileDType::kF32, 0, nullptr);
  EXPECT_THROW(to_f32(bytes.data(), FileDType::kI32, 1, back.data()), InternalError);
  EXPECT_THROW(from_f32(back.data(), FileDType::kF64, 1, bytes.data()), InternalError);
}

}  // namespace
}  // namespace untied
