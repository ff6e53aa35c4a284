#include "train/probe.h"

#include <algorithm>
#include <cmath>

namespace untied {

Probe probe_step(const Run& run, std::span<const std::shared_ptr<const Sequence>> micro_batches,
                 const std::function<void(RankState&)>& then) {
  Probe probe;
  probe.device_peaks.resize(run.layout.ranks);
  probe.host_peaks.resize(run.layout.ranks);
  on_each_rank(run, [&](RankState& rank) {
    const int me = rank.world->rank();
    const StepStats stats = train_step(rank, micro_batches, {.update = false});
    EachParameter keep;
    if (me == 0) {
      probe.loss = stats.loss;
      probe.grad_norm = stats.grad_norm;
      keep = [&](const Parameter& p, std::span<const float> values) {
        probe.gradients[p.name].assign(values.begin(), values.end());
      };
    }
    collect_gradients(rank, keep);
    if (then) then(rank);
    probe.device_peaks[me] = rank.ctx().memory.peak();
    probe.host_peaks[me] = rank.ctx().host.peak();
  });
  return probe;
}

Difference worst_difference(const Probe& probe, const Probe& reference) {
  auto norm = [](const std::vector<float>& values) {
    double sum = 0;
    for (float v : values) sum += static_cast<double>(v) * v;
    return std::sqrt(sum);
  };
  double largest = 0;
  for (const auto& [name, values] : reference.gradients) largest = std::max(largest, norm(values));
  Difference difference;
  for (const auto& [name, expected] : reference.gradients) {
    const std::vector<float>& found = probe.gradients.at(name);
    double sum = 0;
    for (std::size_t i = 0; i < expected.size(); ++i) {
      const double d = static_cast<double>(found[i]) - expected[i];
      sum += d * d;
    }
    // Below a millionth of the largest gradient only rounding is left to compare.
    const double relative = std::sqrt(sum) / std::max({norm(expected), 1e-6 * largest, 1e-30});
    if (!(relative <= difference.worst)) difference = {relative, name};
  }
  return difference;
}

}  // namespace untied
