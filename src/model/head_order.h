// Checkpoints hold heads in canonical order, working weights in the order of the attention stages. This maps one to the other.
#pragma once

#include "model/parameters.h"
#include "parallel/schedule.h"

namespace untied {

// A run of elements that is contiguous in both orders.
struct OrderRun {
  dim_t working, canonical, size;  // element offsets inside the parameter
};

// The runs that make up elements [range) of the parameter in working order.
std::vector<OrderRun> order_runs(const Parameter& parameter, const HeadSchedule& heads, dim_t head_dim, Range range);

}  // namespace untied
