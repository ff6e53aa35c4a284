// A training run: its parts, and the loop over steps.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "io/checkpoint.h"
#include "io/dataset.h"
#include "train/layout.h"
#include "train/run_log.h"
#include "train/step.h"
#include "train/weights_io.h"

namespace untied {

// What a run is made of; shared by the ranks of the process, read only.
struct Run {
  RunConfig config;
  ModelConfig model;
  Layout layout;
  std::vector<dim_t> device_bytes, host_bytes;                             // planned, of each rank
  std::function<std::unique_ptr<Device>(int rank)> make_device = nullptr;  // null: of the layout's target
  std::shared_ptr<const WeightSource> weights;
  std::shared_ptr<const Dataset> data, eval_data;  // eval_data may be null
  CheckpointFormat format;
  RunLog* log = nullptr;
};

// What hooks see after each step.
struct StepRecord {
  dim_t step = 0;
  StepStats stats;
  double lr = 0, seconds = 0;
  dim_t tokens = 0, valid_targets = 0;
  double flops = 0;  // model_flops, of all ranks
};

// Something done after steps, on every rank, in the same order everywhere (a hook may communicate).
class Hook {
 public:
  virtual ~Hook() = default;
  virtual void after_step(RankState& rank, const StepRecord& record) = 0;
};

enum class RunEnd { kFinished, kStopped };

// Trains on the ranks of this process and saves the model. Throws what went wrong on the rank that failed first.
RunEnd train(const Run& run);

// Runs body(rank) on every rank of this process: each on its device, with memory as planned and the weights loaded.
void on_each_rank(const Run& run, const std::function<void(RankState&)>& body);

}  // namespace untied
