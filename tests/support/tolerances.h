// How far an op may be from its scalar double reference, and why. One table for all backends and types.
//
// The measure: the largest |got - want| over the largest |want| of the tensor, at least 1 (near_all). fp32 has 6e-8 of
// rounding per operation, so 1e-6 is some ten roundings; bf16 has 4e-3.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string_view>
#include <vector>

#include "tensor/dtype.h"

namespace untied::test {

struct Tolerance {
  const char* op;
  double fp32, bf16;
  const char* reason;
};
inline constexpr Tolerance kTolerances[] = {
    {"matmul", 3e-6, 8e-3, "a sum of K products in fp32: sqrt(K) roundings at random; bf16 rounds the result once"},
    {"bias", 5e-7, 8e-3, "one addition; the backward sum is in double or fp32 with a last rounding"},
    {"copy", 0, 0, "moves bits, and sums that are exact"},
    {"sum", 2e-6, 8e-3, "up to a thousand additions in fp32"},
    {"rmsnorm", 1e-6, 2e-2, "a sum over the row, a few products"},
    {"rmsnorm dw", 3e-6, 2e-2, "a sum over all rows"},
    {"swiglu", 1e-6, 2e-2, "exp to two units in the last place, a few products"},
    {"rope angles", 3e-7, 3e-7, "the phase rounded once to fp32 (1.2e-7 at pi), sin and cos to two units"},
    {"rotate", 5e-7, 8e-3, "two products and a sum"},
    {"cross entropy", 1e-6, 2e-2, "exp of fp32 differences; the loss itself is fp64"},
    {"adamw", 2e-6, 8e-3, "some ten roundings a step, several steps"},
    {"sum of squares", 1e-12, 1e-12, "formed in double; the reference adds 300,001 terms one by one"},
};
inline double tolerance(std::string_view op, DType dtype = DType::kF32) {
  for (const Tolerance& t : kTolerances)
    if (t.op == op) return dtype == DType::kBF16 ? t.bf16 : t.fp32;
  ADD_FAILURE() << "no tolerance for " << op;
  return 0;
}

// Every element within tolerance * max(1, largest |want|); the message names the worst one.
inline testing::AssertionResult near_all(const std::vector<double>& got, const std::vector<double>& want,
                                         double tolerance) {
  if (got.size() != want.size()) return testing::AssertionFailure() << got.size() << " values against " << want.size();
  double largest = 1, worst = -1;
  std::size_t where = 0;
  for (double w : want) largest = std::max(largest, std::abs(w));
  for (std::size_t i = 0; i < got.size(); ++i) {
    double error = std::abs(got[i] - want[i]);
    if (std::isnan(error)) error = std::numeric_limits<double>::infinity();
    if (error > worst) worst = error, where = i;
  }
  if (worst <= tolerance * largest) return testing::AssertionSuccess();
  return testing::AssertionFailure() << "[" << where << "] is " << got[where] << ", not " << want[where] << ": off by "
                                     << worst / largest << " of the largest, more than " << tolerance;
}

}  // namespace untied::test
