// One step without an update, and all it produced: what `verify` and the tests compare between layouts.
#pragma once

#include <map>

#include "train/run.h"

namespace untied {

struct Probe {
  double loss = 0, grad_norm = 0;
  std::map<std::string, std::vector<float>> gradients;  // whole, canonical order, by Hugging Face name
  std::vector<dim_t> device_peaks, host_peaks;          // bytes, of each rank's arenas
};

// run.data, format and log are not used. `then`, if given, goes on with every rank; the peaks are those at the end of it.
Probe probe_step(const Run& run, std::span<const std::shared_ptr<const Sequence>> micro_batches,
                 const std::function<void(RankState&)>& then = nullptr);

struct Difference {
  double worst = 0;  // relative: norm of the difference over the norm of the reference
  std::string parameter;
};
// The parameter whose gradient differs most. A gradient that should be zero is measured against the largest one's norm.
Difference worst_difference(const Probe& probe, const Probe& reference);

}  // namespace untied
