#include "model/init.h"

#include <algorithm>
#include <cmath>
#include <string_view>

#include "base/error.h"

namespace untied {
namespace {

// SplitMix64 (Steele, Lea, Flood 2014): the i-th output is a hash of key + i * kGamma, so any element can be had alone.
constexpr std::uint64_t kGamma = 0x9e3779b97f4a7c15;

constexpr std::uint64_t mix(std::uint64_t z) {
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
  z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
  return z ^ (z >> 31);
}

constexpr std::uint64_t hash(std::string_view text) {  // FNV-1a
  std::uint64_t h = 0xcbf29ce484222325;
  for (const char c : text) h = (h ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return h;
}

// What follows uses only operations that IEEE 754 rounds exactly: a libm's log and cos differ between versions and
// processors in the last bit. Products and sums are explicit fma, as compilers differ in which ones they fuse.

// a[0] + a[1] x + a[2] x^2 + ...
template <std::size_t n>
double polynomial(const double (&a)[n], double x) {
  double sum = a[n - 1];
  for (std::size_t i = n - 1; i-- > 0;) sum = std::fma(sum, x, a[i]);
  return sum;
}

// ln x = e ln 2 + 2 artanh((m - 1) / (m + 1)) with x = m 2^e, m in [sqrt(1/2), sqrt(2)); relative error below 1e-10.
double natural_log(double x) {
  static constexpr double kSeries[] = {1, 1 / 3., 1 / 5., 1 / 7., 1 / 9., 1 / 11., 1 / 13.};
  int e = 0;
  double m = std::frexp(x, &e);
  if (m < 0.70710678118654752) {
    m *= 2;
    --e;
  }
  const double s = (m - 1) / (m + 1);
  return std::fma(e, 0.69314718055994531, 2 * s * polynomial(kSeries, s * s));
}

// The quantile of N(0, 1) at 0 < p < 1: algorithm AS 241, PPND7 (Wichura 1988), 1 part in 10^7.
double normal_quantile(double p) {
  static constexpr double kA[] = {3.3871327179, 50.434271938, 159.29113202, 59.109374720};
  static constexpr double kB[] = {1, 17.895169469, 78.757757664, 67.187563600};
  static constexpr double kC[] = {1.4234372777, 2.7568153900, 1.3067284816, 0.17023821103};
  static constexpr double kD[] = {1, 0.73700164250, 0.12021132975};
  static constexpr double kE[] = {6.6579051150, 3.0812263860, 0.42868294337, 0.017337203997};
  static constexpr double kF[] = {1, 0.24197894225, 0.012258202635};
  const double q = p - 0.5;
  if (std::abs(q) <= 0.425) {
    const double r = std::fma(-q, q, 0.180625);
    return q * polynomial(kA, r) / polynomial(kB, r);
  }
  const double r = std::sqrt(-natural_log(std::min(p, 1 - p)));
  const double z =
      r <= 5 ? polynomial(kC, r - 1.6) / polynomial(kD, r - 1.6) : polynomial(kE, r - 5) / polynomial(kF, r - 5);
  return std::copysign(z, q);
}

// 52 random bits and a half: never 0 or 1, and p and 1 - p are both exact.
double uniform(std::uint64_t bits) { return (static_cast<double>(bits >> 12) + 0.5) * 0x1p-52; }

}  // namespace

void init_parameter(const Parameter& parameter, double init_std, std::uint64_t seed, Range elements, float* out) {
  CHECK(elements.begin >= 0 && elements.end <= parameter.shape.size(), "[{}, {}) of {} {}", elements.begin,
        elements.end, parameter.name, parameter.shape.str());
  if (parameter.init != Init::kNormal) {
    std::fill_n(out, elements.size(), parameter.init == Init::kOnes ? 1.0f : 0.0f);
    return;
  }
  const std::uint64_t key = mix(mix(seed + kGamma) ^ hash(parameter.name));
  for (dim_t i = elements.begin; i < elements.end; ++i) {
    const std::uint64_t bits = mix(key + (static_cast<std::uint64_t>(i) + 1) * kGamma);
    *out++ = static_cast<float>(init_std * normal_quantile(uniform(bits)));
  }
}

}  // namespace untied
