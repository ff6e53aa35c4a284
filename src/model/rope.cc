#include "model/rope.h"

#include <cmath>
#include <numbers>

namespace untied {
namespace {

// Llama 3.1: long waves are stretched by `factor`, short ones kept, those between blended.
double llama3(double frequency, const RopeConfig& rope) {
  const double wavelength = 2 * std::numbers::pi / frequency;
  const double context = static_cast<double>(rope.original_context);
  if (wavelength < context / rope.high_freq_factor) return frequency;
  if (wavelength > context / rope.low_freq_factor) return frequency / rope.factor;
  const double keep = (context / wavelength - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor);
  return (1 - keep) * frequency / rope.factor + keep * frequency;
}

}  // namespace

std::vector<double> rope_frequencies(const RopeConfig& rope, dim_t head_dim) {
  std::vector<double> frequencies(head_dim / 2);
  for (dim_t i = 0; i < head_dim / 2; ++i) {
    frequencies[i] = std::pow(rope.theta, -2.0 * static_cast<double>(i) / static_cast<double>(head_dim));
    if (rope.type == RopeType::kLlama3) frequencies[i] = llama3(frequencies[i], rope);
  }
  return frequencies;
}

}  // namespace untied
