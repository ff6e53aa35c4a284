// Filling a rank's shards from a checkpoint or at random, and writing the whole model back.
#pragma once

#include <functional>
#include <map>
#include <span>

#include "io/checkpoint.h"
#include "train/rank_state.h"

namespace untied {

// Where parameter values come from, in canonical order. Called by all ranks at once.
class WeightSource {
 public:
  virtual ~WeightSource() = default;
  virtual void read(const Parameter& parameter, Range elements, float* out) const = 0;
};
std::unique_ptr<WeightSource> checkpoint_source(std::shared_ptr<const CheckpointReader> checkpoint);
std::unique_ptr<WeightSource> random_source(std::uint64_t seed, double init_std);

// Each rank fills its own shards, in the working order of heads, through one staging piece. source is not read on meta.
void load_weights(RankState& rank, const WeightSource* source);

// Gathers unit by unit; the rank with a writer (rank 0) writes. fp32 master weights are what is written when there are any.
void save_weights(RankState& rank, CheckpointWriter* writer);

// The gradient shards of the last step, gathered as above and given to `each` in canonical order, whole parameters at a time:
// for `verify` and tests. Every rank calls it; `each` runs where it is set.
using EachParameter = std::function<void(const Parameter&, std::span<const float>)>;
void collect_gradients(RankState& rank, const EachParameter& each);
void collect_weights(RankState& rank, const EachParameter& each);

}  // namespace untied
