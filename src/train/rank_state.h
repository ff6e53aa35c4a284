// Everything one rank holds between steps. Members are declared in the order in which they take memory; on meta the same
// construction is the plan's first part.
#pragma once

#include <memory>

#include "model/execution.h"
#include "model/parameters.h"
#include "train/layout.h"
#include "train/optimizer.h"

namespace untied {

struct RankState {
  // capacity < 0: plan. The world communicator spans all ranks.
  RankState(const Layout& layout, const ModelConfig& model, std::unique_ptr<Device> device,
            std::shared_ptr<Communicator> world, dim_t device_capacity, dim_t host_capacity);

  Ctx& ctx() { return memory.ctx(); }
  Execution execution();

  Layout layout;
  ModelConfig model;
  ModelParameters table;
  HeadSchedule heads;
  std::vector<double> rope;
  std::shared_ptr<Communicator> world;

  RankMemory memory;
  ShardedParameters weights;
  GradientShards gradients;
  Optimizer optimizer;
  SavedActivations saved;
  Held ids, targets, positions;  // int32 [T]
  Held batch_staging;            // int32 [3, T], host
  Held scalars, scalars_host;    // fp64 [3]: loss sum, gradient norm squared, ranks that ask to stop
};

}  // namespace untied
