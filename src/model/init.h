// Random weights that depend on (seed, name, element) and on nothing else: neither on the number of ranks, nor on the
// order in which they are made, nor on the machine's mathematical library.
#pragma once

#include <cstdint>

#include "base/size.h"
#include "model/parameters.h"

namespace untied {

// Elements [elements.begin, elements.end) of the parameter, in the checkpoint's order, into out[0 .. size).
// Matrices are N(0, init_std), norms 1, biases 0.
void init_parameter(const Parameter& parameter, double init_std, std::uint64_t seed, Range elements, float* out);

}  // namespace untied
