#include "app/validate.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/format.h"
#include "device/cuda.h"

namespace untied {
namespace {

constexpr Commands kRuns{Command::kTrain, Command::kPlan, Command::kVerify};
constexpr Commands kComputes{Command::kTrain, Command::kVerify, Command::kBench};
constexpr Commands kAll = kRuns | kComputes | Commands{Command::kData, Command::kModel};

// What the command-line contract names and this version, or this build, cannot do. A row goes when its feature comes.
struct Limit {
  Commands commands;
  std::string option;
  std::vector<std::string> available;  // values
  std::string reason;
};
const std::vector<Limit> kLimits = {
    {kAll, "method", {"ulysses", "upipe", "untied"}, "ring attention is not available yet"},
    {kAll, "ring", {"1"}, "ring attention is not available yet"},
    {kAll, "data-parallel", {"1", "auto"}, "data parallelism is not available yet"},
    {kAll, "save-activations", {"recompute", "attention", "auto"}, "this policy is not available yet"},
    {kAll, "store", {"device", "host", "auto"}, "a store in files is not available yet"},
    {kAll, "tokenizer", {"bytes"}, "a tokenizer file is not available yet"},
    {kAll, "resume", {"false"}, "resuming is not available yet"},
    {kAll, "checkpoint-every", {"0"}, "a checkpoint before the end is not available yet"},
    {kAll, "keep", {"0"}, "a checkpoint before the end is not available yet"},
    {kHasCuda ? Commands{} : kComputes,
     "device",
     {"cpu", "auto"},
     "this build has no cuda backend (make build CUDA=1)"},
};

void check_limits(const Invocation& invocation) {
  for (const Limit& limit : kLimits) {
    if (!limit.commands.has(invocation.command)) continue;
    const Option& option = find_option(limit.option, limit.option);
    for (const std::string& value : option.get(invocation)) {
      if (std::find(limit.available.begin(), limit.available.end(), value) != limit.available.end()) continue;
      if (option.arity == Option::Arity::kFlag) throw ConfigError("--{}: {}", option.name, limit.reason);
      throw ConfigError("--{} {}: {}; {} {}", option.name, value, limit.reason, fmt::join(limit.available, ", "),
                        limit.available.size() == 1 ? "is" : "are");
    }
  }
}

void check_required(const Invocation& invocation) {
  std::vector<std::string> missing;
  for (const std::string& name : action_of(invocation).required)
    if (!invocation.given.contains(name)) missing.push_back("--" + name);
  if (!missing.empty())
    throw ConfigError("{} {} missing", fmt::join(missing, ", "), missing.size() == 1 ? "is" : "are");
}

// Fills in the degrees that are 0, so that ranks = ring * ulysses * data_parallel.
void resolve_degrees(RunConfig& config, dim_t ranks) {
  const std::string& method = config.method;
  if ((method == "ulysses" || method == "upipe") && config.ring > 1)
    throw ConfigError("--ring {}: --method {} has no ring", config.ring, method);
  if (method == "ring" && config.ulysses > 1)
    throw ConfigError("--ulysses {}: --method ring keeps heads together", config.ulysses);
  if (method == "usp" && (config.ring == 1 || config.ulysses <= 1))
    throw ConfigError("--method usp: needs --ring and --ulysses, both above 1");

  const dim_t groups = std::max(config.data_parallel, 1);
  const dim_t ring = method == "ring" && config.ring == 1 ? ranks / groups : config.ring;
  const dim_t ulysses = method == "ring" ? 1 : config.ulysses ? config.ulysses : ranks / (ring * groups);
  const dim_t data_parallel = config.data_parallel || ulysses == 0 ? groups : ranks / (ring * ulysses);
  if (ring * ulysses * data_parallel != ranks) {
    const auto asked = [](int degree) { return degree ? format("{}", degree) : "auto"; };
    throw ConfigError("--ranks {}: not the product of --ring {}, --ulysses {} and --data-parallel {}", ranks,
                      config.ring, asked(config.ulysses), asked(config.data_parallel));
  }
  if (data_parallel > 1)
    throw ConfigError("--ranks {}: {} to a sequence leave --data-parallel {}, which is not available yet; 1 is", ranks,
                      ring * ulysses, data_parallel);
  config.ring = static_cast<int>(ring);
  config.ulysses = static_cast<int>(ulysses);
  config.data_parallel = static_cast<int>(data_parallel);
}

void check_degrees(const Invocation& invocation) {
  RunConfig config = invocation.run;
  const dim_t wanted = dim_t{config.ring} * std::max(config.ulysses, 1) * std::max(config.data_parallel, 1);
  const int given = invocation.emulate_ranks ? invocation.emulate_ranks : config.ranks;
  resolve_degrees(config, given ? given : wanted);
}

void check_out(const Invocation& invocation) {
  namespace fs = std::filesystem;
  const std::string& out = invocation.run.out;
  std::error_code error;
  if (out.empty() || !fs::exists(out, error)) return;
  if (!fs::is_directory(out, error)) throw ConfigError("--out {}: is not a folder", out);
  if (!fs::is_empty(out, error) && !invocation.run.resume)
    throw ConfigError("--out {}: is not empty; a run needs a folder of its own, or --resume", out);
}

void check_dtype(const Invocation& invocation) {
  const RunConfig& run = invocation.run;
  const bool cpu = run.device == DeviceKind::kCpu || (run.device == DeviceKind::kAuto && cuda_device_count() == 0);
  if (cpu && run.dtype == DType::kBF16)
    throw ConfigError("--dtype bf16: the cpu computes in fp32; bf16 needs --device cuda");
}

void check_warmup(const Invocation& invocation) {
  const RunConfig& run = invocation.run;
  if (invocation.given.contains("steps") && run.warmup > run.steps)
    throw ConfigError("--warmup {}: more than --steps {}", run.warmup, run.steps);
}

// Options that would do nothing.
void check_idle(const Invocation& invocation) {
  if (invocation.run.eval_every > 0 && invocation.run.eval_data.empty())
    throw ConfigError("--eval-every {}: needs --eval-data", invocation.run.eval_every);
  if (invocation.emulate_ranks && invocation.action != "step")
    throw ConfigError("--emulate-ranks {}: only `bench step` can", invocation.emulate_ranks);
}

struct Rule {
  Commands commands;
  void (*check)(const Invocation&);
};
const Rule kRules[] = {
    {kAll, check_required},
    {kAll, check_limits},
    {{Command::kTrain, Command::kModel}, check_out},
    {kRuns | kComputes, check_degrees},
    {kComputes, check_dtype},
    {kRuns, check_warmup},
    {kRuns | kComputes, check_idle},
};

}  // namespace

void validate(const Invocation& invocation) {
  for (const Rule& rule : kRules)
    if (rule.commands.has(invocation.command)) rule.check(invocation);
}

void apply_method(RunConfig& config, dim_t heads) {
  CHECK(config.ranks >= 1, "the number of ranks is not known");
  resolve_degrees(config, config.ranks);
  if (config.method.empty() || config.method == "untied") return;

  const dim_t stage = config.method == "upipe" ? std::min(dim_t{config.ulysses}, heads) : heads;
  const dim_t rows = ceil_div(config.context, dim_t{config.ring} * config.ulysses);
  if (config.heads_per_stage && config.heads_per_stage != stage)
    throw ConfigError("--heads-per-stage {}: --method {} has {}", config.heads_per_stage, config.method, stage);
  if (config.query_tile && config.query_tile < rows)
    throw ConfigError("--query-tile {}: --method {} takes all {} rows of a rank at once", config.query_tile,
                      config.method, rows);
  config.heads_per_stage = static_cast<int>(stage);
  config.query_tile = config.context;
}

}  // namespace untied
