// AdamW over sharded state: fp32 master weights (where the working weights are not fp32 themselves) and moments, on the device,
// or in host memory and streamed through the device in pieces; the update always runs on the device.
#pragma once

#include "ops/adamw.h"
#include "parallel/gradient_shards.h"
#include "parallel/sharded_parameters.h"

namespace untied {

class Optimizer {
 public:
  Optimizer(Ctx& ctx, const ParameterTable& table, int rank, int ranks, DType working, MemoryKind place);

  // One update of every shard. Biases and norms do not decay.
  void step(Ctx& ctx, ShardedParameters& weights, const GradientShards& gradients, const AdamWStep& step);

  bool has_master() const { return has_master_; }
  MemoryKind place() const { return place_; }
  // fp32 [padded / W] of a unit, in the memory of place().
  Tensor master(int unit) const { return tensor(masters_, unit); }
  Tensor moment1(int unit) const { return tensor(moments1_, unit); }
  Tensor moment2(int unit) const { return tensor(moments2_, unit); }

 private:
  Tensor tensor(const std::vector<Buffer>& buffers, int unit) const;

  const ParameterTable& table_;
  int rank_, ranks_;
  bool has_master_;
  MemoryKind place_;
  std::vector<Buffer> masters_, moments1_, moments2_;
};

}  // namespace untied
