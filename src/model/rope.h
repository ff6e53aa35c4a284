#pragma once

#include <vector>

#include "model/config.h"

namespace untied {

// Inverse frequencies of rotary embedding (Su et al. 2021), [D/2] in double, with the scaling that `rope` asks for
// (llama3: Llama 3.1's, by wavelength).
std::vector<double> rope_frequencies(const RopeConfig& rope, dim_t head_dim);

}  // namespace untied
