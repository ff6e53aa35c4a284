// bf16 by bit operations, beside what the program has for it.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

namespace untied::test {

// To the nearest, ties to even, as a float is; a NaN stays one.
inline std::uint16_t bf16_bits(double x) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(static_cast<float>(x));
  if (std::isnan(x)) return static_cast<std::uint16_t>(bits >> 16 | 0x40u);
  return static_cast<std::uint16_t>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}
inline float from_bf16_bits(std::uint16_t bits) { return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16); }
inline double rounded_to_bf16(double x) { return from_bf16_bits(bf16_bits(x)); }

}  // namespace untied::test
