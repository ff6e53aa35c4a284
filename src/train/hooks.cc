#include "train/hooks.h"

#include "device/hardware.h"

namespace untied {
namespace {

// One line a step, for a person and for a program.
class LogStep final : public Hook {
 public:
  explicit LogStep(const Run& run) : run_(run) {}

  void after_step(RankState& rank, const StepRecord& r) override {
    if (rank.world->rank() != 0) return;
    const double rate = static_cast<double>(r.tokens) / r.seconds;
    run_.log->say(format("step {:>5}  loss {:<9.6g} grad norm {:<9.6g} lr {:<9.3g} {:>8} tokens  {}  {:.1f} tokens/s",
                         r.step, r.stats.loss, r.stats.grad_norm, r.lr, r.tokens, format_seconds(r.seconds), rate));
    run_.log->record({{"kind", "step"},
                      {"step", r.step},
                      {"loss", r.stats.loss},
                      {"grad_norm", r.stats.grad_norm},
                      {"lr", r.lr},
                      {"tokens", r.tokens},
                      {"valid_tokens", r.valid_targets},
                      {"seconds", r.seconds},
                      {"tokens_per_second", rate},
                      {"tokens_per_second_per_rank", rate / run_.layout.ranks},
                      {"mfu", mfu(rank, r)},
                      {"device_peak_bytes", rank.ctx().memory.peak()},
                      {"device_planned_bytes", rank.ctx().memory.capacity()},
                      {"host_peak_bytes", rank.ctx().host.peak()}});
  }

 private:
  // A share of the GPUs' peak rate in bf16; null where there is no figure for it, as of the cpu.
  Json mfu(RankState& rank, const StepRecord& r) const {
    const auto limits = limits_of(rank.ctx().device.name());
    if (!limits || run_.layout.dtype != DType::kBF16) return nullptr;
    return r.flops / (r.seconds * limits->bf16_tflops * 1e12 * run_.layout.ranks);
  }

  const Run& run_;
};

// The mean loss over the whole evaluation data, every --eval-every steps and after the last.
class Evaluate final : public Hook {
 public:
  explicit Evaluate(const Run& run) : run_(run) {}

  void after_step(RankState& rank, const StepRecord& r) override {
    if (r.step % run_.config.eval_every != 0 && r.step != run_.config.steps) return;
    double loss = 0;
    dim_t valid = 0;
    for (dim_t i = 0; i < run_.eval_data->report().sequences; ++i) {
      const auto sequence = run_.eval_data->sequence(i);
      if (sequence->valid_targets == 0) continue;
      loss += evaluate(rank, sequence.get());
      valid += sequence->valid_targets;
    }
    if (rank.world->rank() != 0) return;
    loss /= static_cast<double>(valid);
    run_.log->say(format("step {:>5}  evaluation loss {:.6g} over {} targets", r.step, loss, valid));
    run_.log->record({{"kind", "eval"}, {"step", r.step}, {"loss", loss}, {"valid_tokens", valid}});
  }

 private:
  const Run& run_;
};

}  // namespace

std::vector<std::unique_ptr<Hook>> make_hooks(const Run& run) {
  std::vector<std::unique_ptr<Hook>> hooks;
  hooks.push_back(std::make_unique<LogStep>(run));
  if (run.eval_data) hooks.push_back(std::make_unique<Evaluate>(run));
  return hooks;
}

}  // namespace untied
