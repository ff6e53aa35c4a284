#include "train/learning_rate.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace untied {

double learning_rate(const RunConfig& config, dim_t step) {
  if (step <= config.warmup) return config.lr * static_cast<double>(step) / static_cast<double>(config.warmup);
  const double span = static_cast<double>(std::max<dim_t>(1, config.steps - config.warmup));
  const double done = std::clamp(static_cast<double>(step - config.warmup) / span, 0.0, 1.0);
  switch (config.schedule) {
    case ScheduleKind::kConstant: return config.lr;
    case ScheduleKind::kLinear: return config.lr * (1 - done);
    case ScheduleKind::kCosine: return config.lr * 0.5 * (1 + std::cos(std::numbers::pi * done));
  }
  return config.lr;
}

}  // namespace untied
