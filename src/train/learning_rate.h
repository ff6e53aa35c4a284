#pragma once

#include "train/config.h"

namespace untied {

// The rate of step s, from 1: lr * min(1, s / warmup), then constant, or falling to 0 at config.steps along a line or a
// half cosine.
double learning_rate(const RunConfig& config, dim_t step);

}  // namespace untied
