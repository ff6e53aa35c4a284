#include "app/options.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <numeric>
#include <type_traits>
#include <utility>

#include "base/error.h"
#include "base/format.h"

namespace untied {
namespace {

std::string join(const std::vector<std::string>& parts, std::string_view separator) {
  std::string text;
  for (const std::string& part : parts) text += (text.empty() ? "" : std::string(separator)) + part;
  return text;
}

template <class T>
bool parse_number(const std::string& text, T& value) {
  const char* end = text.data() + text.size();
  auto [rest, error] = std::from_chars(text.data(), end, value);
  return error == std::errc() && rest == end;
}

// Kinds of value: how text becomes one and back. print() gives "" for a value that parse() would refuse, which is how a
// RunConfig says that an option without a default was not given.

struct Flag {
  static constexpr bool kText = false;
  std::string placeholder = "", legal = "true or false";
  bool parse(const std::string& text, bool& value) const {
    value = text == "true";
    return value || text == "false";
  }
  std::string print(bool value) const { return value ? "true" : "false"; }
};

struct Text {
  static constexpr bool kText = true;
  std::string placeholder, legal = "a name";
  bool parse(const std::string& text, std::string& value) const {
    value = text;
    return !text.empty();
  }
  std::string print(const std::string& value) const { return value; }
};

class Whole {
 public:
  static constexpr bool kText = false;
  explicit Whole(std::string placeholder, dim_t min, dim_t max = std::numeric_limits<int>::max())
      : placeholder(std::move(placeholder)), legal(format("a whole number from {} to {}", min, max)), min_(min),
        max_(max) {}
  template <class T>
  bool parse(const std::string& text, T& value) const {
    dim_t number = 0;
    if (!parse_number(text, number) || number < min_ || number > max_) return false;
    value = static_cast<T>(number);
    return true;
  }
  template <class T>
  std::string print(T value) const {
    return static_cast<dim_t>(value) < min_ ? "" : format("{}", value);
  }
  std::string placeholder, legal;

 private:
  dim_t min_, max_;
};

// Of tokens, rows or bytes; never zero.
struct Size {
  static constexpr bool kText = false;
  std::string placeholder, legal;
  std::optional<dim_t> (*parser)(std::string_view);
  dim_t max = std::numeric_limits<dim_t>::max();
  bool parse(const std::string& text, dim_t& value) const {
    value = parser(text).value_or(0);
    return value > 0 && value <= max;
  }
  std::string print(dim_t value) const { return value == 0 ? "" : format("{}", value); }
};
Size tokens(std::string placeholder) {
  return {std::move(placeholder), "a size from 1 to 1024G, such as 131072, 128K or 1M", parse_tokens, dim_t{1} << 40};
}
Size bytes() { return {"BYTES", "a number of bytes, such as 80GB (10^9) or 80GiB (2^30)", parse_bytes}; }

// Finite and in [min, below), or with kAbove in (min, below).
class Real {
 public:
  static constexpr bool kText = false;
  enum Bound { kFrom, kAbove };
  Real(std::string placeholder, Bound bound, double min, double below = std::numeric_limits<double>::infinity())
      : placeholder(std::move(placeholder)), bound_(bound), min_(min), below_(below) {
    legal = format("a number {} {}", bound == kFrom ? "from" : "above", min);
    if (std::isfinite(below)) legal += format(" to below {}", below);
    else if (bound == kFrom) legal += " on";
  }
  bool parse(const std::string& text, double& value) const {
    return parse_number(text, value) && std::isfinite(value) && value < below_ &&
           (bound_ == kAbove ? value > min_ : value >= min_);
  }
  std::string print(double value) const { return format("{}", value); }  // the shortest that reads back the same
  std::string placeholder, legal;

 private:
  Bound bound_;
  double min_, below_;
};

template <class T>
class Choice {
 public:
  static constexpr bool kText = true;
  Choice(std::initializer_list<std::pair<std::string, T>> choices) : choices_(choices) {
    std::vector<std::string> names;
    for (const auto& [name, value] : choices_) names.push_back(name);
    placeholder = join(names, "|");
    legal = "one of " + join(names, ", ");
  }
  bool parse(const std::string& text, T& value) const {
    for (const auto& [name, chosen] : choices_)
      if (name == text) return value = chosen, true;
    return false;
  }
  std::string print(const T& value) const {
    for (const auto& [name, chosen] : choices_)
      if (chosen == value) return name;
    return "";
  }
  std::string placeholder, legal;

 private:
  std::vector<std::pair<std::string, T>> choices_;
};

// `auto`, or what Kind accepts. The value of auto is T{}: 0, nullopt, kAuto.
template <class Kind>
class Auto {
 public:
  static constexpr bool kText = Kind::kText;
  explicit Auto(Kind kind) : placeholder(kind.placeholder), legal(kind.legal + ", or auto"), kind_(std::move(kind)) {}
  template <class T>
  bool parse(const std::string& text, T& value) const {
    value = T{};
    return text == "auto" || kind_.parse(text, value);
  }
  template <class T>
  bool parse(const std::string& text, std::optional<T>& value) const {
    value.reset();
    return text == "auto" || kind_.parse(text, value.emplace());
  }
  template <class T>
  std::string print(const T& value) const {
    return value == T{} ? "auto" : kind_.print(value);
  }
  template <class T>
  std::string print(const std::optional<T>& value) const {
    return value ? kind_.print(*value) : "auto";
  }
  std::string placeholder, legal;

 private:
  Kind kind_;
};

// A row: where it is legal, how its text is read, which member it fills.
template <class Kind, class Owner, class T>
Option row(std::string name, Commands commands, Kind kind, T Owner::*member, std::string help) {
  auto field = [member](auto& invocation) -> auto& {
    if constexpr (std::is_same_v<Owner, RunConfig>) return invocation.run.*member;
    else return invocation.*member;
  };
  Option option{.name = std::move(name),
                .commands = commands,
                .help = std::move(help),
                .placeholder = kind.placeholder,
                .legal = kind.legal,
                .text = Kind::kText};
  if constexpr (std::is_same_v<T, std::vector<std::string>>) {
    option.arity = Option::Arity::kMany;
    option.placeholder += "...";
    option.set = [=](Invocation& invocation, const std::vector<std::string>& values) {
      field(invocation) = values;
      std::string checked;
      return std::all_of(values.begin(), values.end(), [&](const auto& value) { return kind.parse(value, checked); });
    };
    option.get = [=](const Invocation& invocation) { return field(invocation); };
  } else {
    option.arity = std::is_same_v<T, bool> ? Option::Arity::kFlag : Option::Arity::kOne;
    option.set = [=](Invocation& invocation, const std::vector<std::string>& values) {
      return kind.parse(values.at(0), field(invocation));
    };
    option.get = [=](const Invocation& invocation) {
      const std::string value = kind.print(field(invocation));
      return value.empty() ? std::vector<std::string>{} : std::vector<std::string>{value};
    };
  }
  return option;
}

std::vector<Option> make_table() {
  using R = RunConfig;
  using I = Invocation;
  using enum Command;
  constexpr Commands runs{kTrain, kPlan, kVerify}, engine = runs | Commands{kBench};
  constexpr Commands data = runs | Commands{kData}, files = engine | Commands{kData};
  constexpr dim_t kMaxRanks = 1 << 20;  // of three degrees, the product fits in 63 bits
  const auto ranks = [=](const char* letter) { return Whole(letter, 1, kMaxRanks); };

  std::vector<Option> table;
  const auto section = [&](const char* group, std::vector<Option> rows) {
    for (Option& option : rows) {
      option.group = group;
      table.push_back(std::move(option));
    }
  };
  // clang-format off
  section("What to run", {
    row("model", files | Commands{kModel}, Text{"DIR|PRESET"}, &R::model,
        "checkpoint folder, config.json, or a preset (`untied model list`)"),
    row("data", data, Text{"FILE"}, &R::data, "JSONL, plain text, .npy, Megatron .bin/.idx; patterns are expanded"),
    row("context", files, tokens("N"), &R::context, "tokens of a sequence: 131072, 128K, 1M"),
    row("steps", runs | Commands{kBench}, Whole("N", 0), &R::steps,
        "optimizer steps in all, also when resuming; those that `bench step` measures"),
    row("out", runs | Commands{kModel}, Text{"DIR"}, &R::out, "folder for checkpoints; new or empty, unless resuming"),
    row("resume", runs, Flag{}, &R::resume, "go on from the newest checkpoint in --out"),
    row("config", files, Text{"FILE.toml"}, &I::config, "read options from a file; the command line wins"),
  });
  section("Layout", {
    row("device", engine, Auto(Choice<DeviceKind>{{"cpu", DeviceKind::kCpu}, {"cuda", DeviceKind::kCuda}}), &R::device,
        "where to compute; plan assumes cuda"),
    row("dtype", engine | Commands{kModel}, Auto(Choice<DType>{{"fp32", DType::kF32}, {"bf16", DType::kBF16}}),
        &R::dtype, "of weights and activations; auto: bf16 on cuda, fp32 on cpu"),
    row("ranks", engine, Auto(ranks("N")), &R::ranks,
        "ranks of this process, of the whole run in plan; auto: the GPUs, or 1"),
    row("gpus-per-node", engine, ranks("N"), &R::gpus_per_node, "ranks that share a node and its host memory"),
    row("method", engine,
        Choice<std::string>{{"ulysses", "ulysses"}, {"upipe", "upipe"}, {"ring", "ring"}, {"usp", "usp"},
                            {"untied", "untied"}},
        &R::method, "shorthand that sets ring, ulysses, heads per stage and query tile"),
    row("ring", engine, ranks("R"), &R::ring, "ring degree of context parallelism"),
    row("ulysses", engine, Auto(ranks("P")), &R::ulysses,
        "all-to-all degree; auto: the rest of the context-parallel ranks"),
    row("data-parallel", engine, Auto(ranks("N")), &R::data_parallel,
        "groups with sequences of their own; auto: ranks / (R P)"),
    row("heads-per-stage", engine, Auto(Whole("U", 1)), &R::heads_per_stage,
        "query heads of one attention stage; auto: all up to 64K tokens, then one or a few a rank"),
    row("query-tile", engine, Auto(tokens("ROWS")), &R::query_tile, "query rows of one rank at a time"),
    row("mlp-tile", engine, Auto(tokens("ROWS")), &R::mlp_tile, "MLP rows of one rank at a time"),
    row("loss-tile", engine, Auto(tokens("ROWS")), &R::loss_tile, "rows of one rank that have logits at a time"),
  });
  section("Memory", {
    row("save-activations", engine,
        Auto(Choice<SavePolicy>{{"all", SavePolicy::kAll}, {"recompute", SavePolicy::kRecompute},
                                {"attention", SavePolicy::kAttention}, {"chain", SavePolicy::kChain}}),
        &R::save_activations, "what the forward keeps for the backward"),
    row("store", engine, Text{"device|host|DIR"}, &R::store, "where it is kept"),
    row("optimizer-state", engine,
        Auto(Choice<OptimizerPlace>{{"device", OptimizerPlace::kDevice}, {"host", OptimizerPlace::kHost}}),
        &R::optimizer_state, "where fp32 weights and moments live"),
    row("device-memory", engine, Auto(bytes()), &R::device_memory, "per rank: 80GB, 80GiB; auto: what is there"),
    row("host-memory", engine, Auto(bytes()), &R::host_memory, "per node; auto: what is there"),
    row("deterministic", engine, Flag{}, &R::deterministic, "two runs agree bit for bit"),
  });
  section("Optimizer", {
    row("lr", runs, Real("X", Real::kFrom, 0), &R::lr, "peak learning rate"),
    row("schedule", runs,
        Choice<ScheduleKind>{{"constant", ScheduleKind::kConstant}, {"linear", ScheduleKind::kLinear},
                             {"cosine", ScheduleKind::kCosine}},
        &R::schedule, "of the learning rate after the warm-up; linear and cosine end at 0"),
    row("warmup", runs, Whole("STEPS", 0), &R::warmup, "steps in which the learning rate rises"),
    row("weight-decay", runs, Real("X", Real::kFrom, 0), &R::weight_decay, "of matrices"),
    row("beta1", runs, Real("X", Real::kFrom, 0, 1), &R::beta1, "Adam's decay of the mean"),
    row("beta2", runs, Real("X", Real::kFrom, 0, 1), &R::beta2, "Adam's decay of the square"),
    row("eps", runs, Real("X", Real::kAbove, 0), &R::eps, "Adam's guard against division by zero"),
    row("clip", runs, Real("X", Real::kFrom, 0), &R::clip, "largest gradient norm; 0: no clipping"),
    row("accumulate", runs, Whole("N", 1), &R::accumulate, "micro-batches of a step"),
    row("seed", files | Commands{kModel}, Whole("N", 0, std::numeric_limits<dim_t>::max()), &R::seed,
        "of initial weights and data order"),
  });
  section("Data", {
    row("tokenizer", data, Text{"bytes|FILE"}, &R::tokenizer, "turns text into ids; default: the model's, else bytes"),
    row("long-documents", data,
        Choice<LongDocuments>{{"split", LongDocuments::kSplit}, {"truncate", LongDocuments::kTruncate},
                              {"drop", LongDocuments::kDrop}, {"error", LongDocuments::kError}},
        &R::long_documents, "what to do with documents longer than the context"),
    row("pack", data, Choice<Packing>{{"documents", Packing::kDocuments}, {"concat", Packing::kConcat}}, &R::packing,
        "keep attention inside each document, or not"),
    row("shuffle", data, Flag{}, &R::shuffle, "reorder documents by seed and epoch"),
    row("eval-data", runs, Text{"FILE"}, &R::eval_data, "data for evaluation"),
    row("eval-every", runs, Whole("STEPS", 0), &R::eval_every, "steps between evaluations; 0: none"),
  });
  section("Output", {
    row("checkpoint-every", runs, Whole("STEPS", 0), &R::checkpoint_every,
        "steps between checkpoints; 0: at the end only"),
    row("keep", runs, Whole("N", 0), &R::keep, "checkpoints to keep; 0: all"),
    row("grace", runs, Real("SECONDS", Real::kFrom, 0), &R::grace,
        "that a step may take to finish after SIGTERM or SIGINT"),
    row("log", runs, Text{"FILE.jsonl"}, &R::log, "one JSON object per step"),
    row("json", {kPlan, kBench}, Flag{}, &I::json, "print JSON instead of text"),
    row("html", {kPlan}, Text{"FILE"}, &I::html, "write the plan as a page"),
    row("trace", {kPlan}, Text{"FILE"}, &I::trace, "write the simulated step as a Chrome trace"),
    row("emulate-ranks", {kBench}, ranks("N"), &I::emulate_ranks, "time `step` as the first of N ranks"),
    row("seconds", {kBench}, Real("SECONDS", Real::kFrom, 0), &I::seconds,
        "of sustained work for a rate of `bench`; 0: bursts only"),
    row("profile", {kBench}, Flag{}, &I::profile,
        "`bench step`: then one more step, and the seconds of each op in it"),
    row("dry-run", runs, Flag{}, &R::dry_run, "plan and check everything, then stop before the first step"),
    row("print-config", files, Flag{}, &R::print_config, "print all options as a TOML file, and do nothing else"),
  });
  // clang-format on
  return table;
}

}  // namespace

const std::vector<Option>& options() {
  static const std::vector<Option> table = make_table();
  return table;
}

const Option& find_option(const std::string& name, const std::string& where) {
  std::vector<std::string> names;
  for (const Option& option : options()) {
    if (option.name == name) return option;
    names.push_back(option.name);
  }
  throw ConfigError("{}: no such option; the nearest is {}{}", where, where.starts_with("--") ? "--" : "",
                    nearest(name, names));
}

const std::vector<CommandInfo>& commands() {
  // clang-format off
  static const std::vector<CommandInfo> table = {
    {Command::kTrain, "train", "train a model", {{"", {"model", "data", "context", "steps", "out"}}}},
    {Command::kPlan, "plan", "tell where every byte of a run goes and which context fits",
     {{"", {"model", "context"}}}},
    {Command::kVerify, "verify", "compare the chosen layout with a single rank: loss and every gradient",
     {{"", {"model", "data", "context"}}}},
    {Command::kBench, "bench", "measure rates and put them beside the hardware's limits",
     {{"ops", {}}, {"attention", {}}, {"comm", {}}, {"copies", {}}, {"step", {}}, {"methods", {}}}},
    {Command::kData, "data", "show what the trainer will see, token by token",
     {{"inspect", {"data", "context"}}, {"tokenize", {}}}},
    {Command::kModel, "model", "list presets, inspect a checkpoint, initialise one",
     {{"list", {}}, {"inspect", {"model"}}, {"init", {"model", "out"}}}},
  };
  // clang-format on
  return table;
}

const CommandInfo& info(Command command) { return commands()[static_cast<std::size_t>(command)]; }

const Action& action_of(const Invocation& invocation) {
  const auto& actions = info(invocation.command).actions;
  return *std::find_if(actions.begin(), actions.end(),
                       [&](const Action& action) { return action.name == invocation.action; });
}

std::string nearest(std::string_view text, const std::vector<std::string>& candidates) {
  const auto distance = [&](std::string_view other) {  // Levenshtein, one row of the matrix at a time
    std::vector<std::size_t> row(other.size() + 1);
    std::iota(row.begin(), row.end(), std::size_t{0});
    for (std::size_t i = 1; i <= text.size(); ++i) {
      std::size_t diagonal = std::exchange(row[0], i);
      for (std::size_t j = 1; j <= other.size(); ++j)
        diagonal =
            std::exchange(row[j], std::min({row[j] + 1, row[j - 1] + 1, diagonal + (text[i - 1] != other[j - 1])}));
    }
    return row.back();
  };
  return *std::min_element(candidates.begin(), candidates.end(),
                           [&](const auto& a, const auto& b) { return distance(a) < distance(b); });
}

}  // namespace untied
