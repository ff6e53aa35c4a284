// `untied verify`: the chosen layout against a single rank, on one short batch: loss and every gradient.
#include <fmt/core.h>

#include <cmath>

#include "app/prepare.h"
#include "base/error.h"
#include "plan/report.h"
#include "train/probe.h"

namespace untied {
namespace {

constexpr dim_t kBlocks = 2;     // the whole model may not fit one rank
constexpr dim_t kTokens = 4096;  // a short batch shows every exchange

struct Tolerance {
  double loss, gradients;
};
Tolerance tolerance_of(DType dtype) { return dtype == DType::kBF16 ? Tolerance{5e-3, 2e-2} : Tolerance{1e-5, 1e-4}; }

Probe probe(const Prepared& prepared, const Choice& choice,
            const std::vector<std::shared_ptr<const Sequence>>& sequences) {
  Run run = planned_run(prepared, choice);
  fmt::print("{}\n", describe(run.layout, run.model));
  Probe result = probe_step(run, sequences);
  fmt::print("  loss {:.9g}  gradient norm {:.9g}\n", result.loss, result.grad_norm);
  return result;
}

// One rank, everything at once, nothing streamed: the simplest layout there is.
Prepared single_rank(Prepared prepared) {
  RunConfig& config = prepared.config;
  config.ranks = config.ulysses = 1;
  config.method.clear();
  config.heads_per_stage = static_cast<int>(prepared.model.heads);
  config.query_tile = config.mlp_tile = config.loss_tile = config.context;
  config.store = "device";
  config.optimizer_state = OptimizerPlace::kDevice;
  config.save_activations = SavePolicy::kAttention;
  prepared.limits = limits_here(config, prepared.target);
  return prepared;
}

}  // namespace

int run_verify(const Invocation& invocation) {
  Prepared prepared = prepare(invocation);
  if (prepared.checkpoint) prepared.checkpoint->check(ModelParameters(prepared.model));
  prepared.model.blocks = std::min(prepared.model.blocks, kBlocks);
  prepared.config.context = std::min(prepared.config.context, kTokens);
  const auto data = Dataset::open(prepared.config.data, data_options(prepared.config, prepared.model.vocab));
  std::vector<std::shared_ptr<const Sequence>> sequences;
  dim_t valid = 0;
  for (int i = 0; i < prepared.config.accumulate || valid == 0; ++i) {
    sequences.push_back(data->sequence(i));
    valid += sequences.back()->valid_targets;
  }
  prepared.config.accumulate = static_cast<int>(sequences.size());
  fmt::print("{} of the model's blocks, {} tokens, {} targets\n", prepared.model.blocks, prepared.config.context,
             valid);

  const Choice choice = choose_or_throw(prepared);
  const Probe chosen = probe(prepared, choice, sequences);
  const Prepared single = single_rank(prepared);
  const Probe reference = probe(single, choose_or_throw(single), sequences);
  const Tolerance tolerance = tolerance_of(choice.layout.dtype);
  const double loss = std::abs(chosen.loss - reference.loss) / std::abs(reference.loss);
  const double norm = std::abs(chosen.grad_norm - reference.grad_norm) / reference.grad_norm;
  const Difference worst = worst_difference(chosen, reference);
  const bool agree = loss <= tolerance.loss && norm <= tolerance.gradients && worst.worst <= tolerance.gradients;
  fmt::print(
      "loss differs by {:.2e} (at most {:.0e}), gradient norm by {:.2e}, the worst gradient by {:.2e} (at most {:.0e}){}\n{}\n",
      loss, tolerance.loss, norm, worst.worst, tolerance.gradients,
      worst.parameter.empty() ? "" : ": " + worst.parameter, agree ? "they agree" : "they do NOT agree");
  return static_cast<int>(agree ? ExitCode::kOk : ExitCode::kFailure);
}

}  // namespace untied
