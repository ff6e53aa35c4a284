// A run as the user asked for it: every option of the command line and the TOML file, with defaults; nothing derived.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/size.h"
#include "io/dataset.h"
#include "tensor/dtype.h"

namespace untied {

enum class SavePolicy { kAuto, kAll, kRecompute, kAttention, kChain };
enum class ScheduleKind { kConstant, kLinear, kCosine };
enum class OptimizerPlace { kAuto, kDevice, kHost };
enum class DeviceKind { kAuto, kCpu, kCuda };

struct RunConfig {
  std::string model;  // folder or preset
  std::vector<std::string> data, eval_data;
  std::string out, log;
  bool resume = false;
  dim_t context = 0;  // S
  dim_t steps = 0;

  DeviceKind device = DeviceKind::kAuto;
  std::optional<DType> dtype;                         // default: fp32 on cpu, bf16 on cuda
  int ranks = 0;                                      // 0: the GPUs, or 1
  int ring = 1;                                       // R
  int ulysses = 0;                                    // P; 0: all of C
  int data_parallel = 0;                              // 0: ranks / (R*P)
  int heads_per_stage = 0;                            // U; 0: automatic
  dim_t query_tile = 0, mlp_tile = 0, loss_tile = 0;  // rows of one rank; 0: automatic
  std::string method;                                 // ulysses | upipe | ring | usp | untied
  SavePolicy save_activations = SavePolicy::kAuto;
  std::string store = "auto";  // device | host | auto | a folder
  OptimizerPlace optimizer_state = OptimizerPlace::kAuto;
  bool deterministic = false;
  std::optional<dim_t> device_memory, host_memory;  // bytes; host per node
  int gpus_per_node = 8;

  double lr = 1e-5, weight_decay = 0.1, beta1 = 0.9, beta2 = 0.95, eps = 1e-8, clip = 1.0;
  ScheduleKind schedule = ScheduleKind::kCosine;
  dim_t warmup = 0;
  int accumulate = 1;
  std::uint64_t seed = 0;

  std::string tokenizer;  // "bytes", or a file
  LongDocuments long_documents = LongDocuments::kSplit;
  Packing packing = Packing::kDocuments;
  bool shuffle = false;
  dim_t eval_every = 0, checkpoint_every = 0, keep = 0;
  double grace = 60;
  bool dry_run = false, print_config = false;
};

}  // namespace untied
