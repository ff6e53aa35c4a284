#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>

#include "app/command_line.h"
#include "base/error.h"
#include "base/format.h"

namespace untied {
namespace {

using Words = std::vector<std::string>;

Words split(const std::string& line) {
  std::istringstream in(line);
  return {std::istream_iterator<std::string>(in), {}};
}

Invocation parse(const std::string& line) { return parse_command_line(split(line)); }

std::string error_of(const std::string& line) {
  try {
    parse(line);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

// A TOML file that lives as long as the test.
class File {
 public:
  explicit File(const std::string& text) : path_(testing::TempDir() + format("untied_options.{}.toml", getpid())) {
    std::ofstream(path_) << text;
  }
  ~File() { std::filesystem::remove(path_); }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// Scripts outside the project rely on these: a change here is a change of the contract in DESIGN.md.
TEST(Options, RatchetOfNamesValuesAndCommands) {
  std::string table;
  for (const Option& option : options()) {
    table += "--" + option.name + (option.placeholder.empty() ? "" : " " + option.placeholder) + ":";
    for (const CommandInfo& command : commands())
      if (option.commands.has(command.command)) table += " " + command.name;
    table += "\n";
  }
  EXPECT_EQ(table, R"(--model DIR|PRESET: train plan verify bench data model
--data FILE...: train plan verify data
--context N: train plan verify bench data
--steps N: train plan verify bench
--out DIR: train plan verify model
--resume: train plan verify
--config FILE.toml: train plan verify bench data
--device cpu|cuda: train plan verify bench
--dtype fp32|bf16: train plan verify bench model
--ranks N: train plan verify bench
--gpus-per-node N: train plan verify bench
--method ulysses|upipe|ring|usp|untied: train plan verify bench
--ring R: train plan verify bench
--ulysses P: train plan verify bench
--data-parallel N: train plan verify bench
--heads-per-stage U: train plan verify bench
--query-tile ROWS: train plan verify bench
--mlp-tile ROWS: train plan verify bench
--loss-tile ROWS: train plan verify bench
--save-activations all|recompute|attention|chain: train plan verify bench
--store device|host|DIR: train plan verify bench
--optimizer-state device|host: train plan verify bench
--device-memory BYTES: train plan verify bench
--host-memory BYTES: train plan verify bench
--deterministic: train plan verify bench
--lr X: train plan verify
--schedule constant|linear|cosine: train plan verify
--warmup STEPS: train plan verify
--weight-decay X: train plan verify
--beta1 X: train plan verify
--beta2 X: train plan verify
--eps X: train plan verify
--clip X: train plan verify
--accumulate N: train plan verify
--seed N: train plan verify bench data model
--tokenizer bytes|FILE: train plan verify data
--long-documents split|truncate|drop|error: train plan verify data
--pack documents|concat: train plan verify data
--shuffle: train plan verify data
--eval-data FILE...: train plan verify
--eval-every STEPS: train plan verify
--checkpoint-every STEPS: train plan verify
--keep N: train plan verify
--grace SECONDS: train plan verify
--log FILE.jsonl: train plan verify
--json: plan bench
--html FILE: plan
--trace FILE: plan
--emulate-ranks N: bench
--seconds SECONDS: bench
--profile: bench
--dry-run: train plan verify
--print-config: train plan verify bench data
)");
}

TEST(Options, FillTheirFields) {
  const Invocation i = parse(
      "train --model tiny --data a b --context 128K --steps 10 --out=o --dtype bf16 --device cpu --ulysses 4 "
      "--query-tile auto --device-memory 80GB --host-memory 2TiB --save-activations chain --optimizer-state host "
      "--lr 3e-4 --schedule linear --seed 9223372036854775807 --shuffle --deterministic=false --pack concat "
      "--long-documents drop --resume --log l");
  EXPECT_EQ(i.run.model, "tiny");
  EXPECT_EQ(i.run.data, (Words{"a", "b"}));
  EXPECT_EQ(i.run.context, 131072);
  EXPECT_EQ(i.run.steps, 10);
  EXPECT_EQ(i.run.out, "o");
  EXPECT_EQ(i.run.dtype, DType::kBF16);
  EXPECT_EQ(i.run.device, DeviceKind::kCpu);
  EXPECT_EQ(i.run.ulysses, 4);
  EXPECT_EQ(i.run.query_tile, 0);
  EXPECT_EQ(i.run.device_memory, 80'000'000'000);
  EXPECT_EQ(i.run.host_memory, dim_t{2} << 40);
  EXPECT_EQ(i.run.save_activations, SavePolicy::kChain);
  EXPECT_EQ(i.run.optimizer_state, OptimizerPlace::kHost);
  EXPECT_EQ(i.run.lr, 3e-4);
  EXPECT_EQ(i.run.schedule, ScheduleKind::kLinear);
  EXPECT_EQ(i.run.seed, 9223372036854775807u);
  EXPECT_TRUE(i.run.shuffle);
  EXPECT_FALSE(i.run.deterministic);
  EXPECT_EQ(i.run.packing, Packing::kConcat);
  EXPECT_EQ(i.run.long_documents, LongDocuments::kDrop);
  EXPECT_TRUE(i.run.resume);
  EXPECT_EQ(i.run.log, "l");
  EXPECT_TRUE(i.given.contains("ulysses"));
  EXPECT_FALSE(i.given.contains("ring"));
}

TEST(Options, ActionsAndOperand) {
  EXPECT_EQ(parse("bench attention --json").action, "attention");
  const Invocation i = parse("model inspect some/folder");
  EXPECT_EQ(i.action, "inspect");
  EXPECT_EQ(i.run.model, "some/folder");
}

TEST(Options, ErrorsNameOptionFoundAndLegal) {
  const std::pair<const char*, const char*> rows[] = {
      {"trian", "trian: no such command; the nearest is train"},
      {"train --contxt 5", "--contxt: no such option; the nearest is --context"},
      {"train --Context 5", "--Context: no such option; the nearest is --context"},
      {"train --heads_per_stage=5", "--heads_per_stage: no such option; the nearest is --heads-per-stage"},
      {"train -x", "'-x': options start with two dashes"},
      {"train stray", "'stray': options start with two dashes"},
      {"train --data=a b", "'b': options start with two dashes"},
      {"train --html x", "--html: not an option of `untied train`"},
      {"train --context", "--context: needs a value, a size from 1 to 1024G, such as 131072, 128K or 1M"},
      {"train --out --steps 5", "--out: needs a value, a name"},
      {"train --data --steps 5", "--data: needs a value, a name"},
      {"train --out=", "--out: '' is not a name"},
      {"train --steps 5 --steps 5", "--steps: given twice"},
      {"train --data a --data b", "--data: given twice"},
      {"train --context 0", "--context: '0' is not a size from 1 to 1024G, such as 131072, 128K or 1M"},
      {"train --context -5", "--context: '-5' is not a size"},
      {"train --context 1.5", "--context: '1.5' is not a size"},
      {"train --context 1MB", "--context: '1MB' is not a size"},
      {"train --context 9223372036854775808", "--context: '9223372036854775808' is not a size"},
      {"train --query-tile 0", "--query-tile: '0' is not a size from 1 to 1024G, such as 131072, 128K or 1M, or auto"},
      {"train --steps -1", "--steps: '-1' is not a whole number from 0 to 2147483647"},
      {"train --steps 1e3", "--steps: '1e3' is not a whole number"},
      {"train --steps 2147483648", "--steps: '2147483648' is not a whole number"},
      {"train --ranks 0", "--ranks: '0' is not a whole number from 1 to 1048576, or auto"},
      {"train --ring 0", "--ring: '0' is not a whole number from 1 to 1048576"},
      {"train --accumulate 0", "--accumulate: '0' is not a whole number from 1"},
      {"train --seed -1", "--seed: '-1' is not a whole number from 0"},
      {"train --lr -1e-5", "--lr: '-1e-5' is not a number from 0 on"},
      {"train --lr inf", "--lr: 'inf' is not a number from 0 on"},
      {"train --lr nan", "--lr: 'nan' is not a number from 0 on"},
      {"train --lr 1e999", "--lr: '1e999' is not a number from 0 on"},
      {"train --lr 0.1x", "--lr: '0.1x' is not a number from 0 on"},
      {"train --beta1 1", "--beta1: '1' is not a number from 0 to below 1"},
      {"train --beta2 -0.1", "--beta2: '-0.1' is not a number from 0 to below 1"},
      {"train --eps 0", "--eps: '0' is not a number above 0"},
      {"train --clip -1", "--clip: '-1' is not a number from 0 on"},
      {"train --device gpu", "--device: 'gpu' is not one of cpu, cuda, or auto"},
      {"train --dtype fp16", "--dtype: 'fp16' is not one of fp32, bf16, or auto"},
      {"train --method fpdt", "--method: 'fpdt' is not one of ulysses, upipe, ring, usp, untied"},
      {"train --shuffle=yes", "--shuffle: 'yes' is not true or false"},
      {"train --device-memory 80GBs",
       "--device-memory: '80GBs' is not a number of bytes, such as 80GB (10^9) or 80GiB (2^30), or auto"},
      {"bench", "bench: needs one of ops, attention, comm, copies, step, methods"},
      {"bench --json", "bench: needs one of ops, attention, comm, copies, step, methods"},
      {"bench atention", "bench atention: no such action; the nearest is attention"},
      {"model list tiny", "'tiny': options start with two dashes"},
      {"model inspect tiny --model tiny", "--model: given twice"},
      {"train --config no/such/file.toml", "--config: there is no file 'no/such/file.toml'"},
  };
  for (const auto& [line, error] : rows)
    EXPECT_TRUE(error_of(line).starts_with(error)) << line << "\n" << error_of(line);
}

TEST(TomlFile, FillsFieldsAndTheCommandLineWins) {
  const File file(R"(
    model = "tiny"
    data = ["a", "b"]
    context = "128K"
    lr = 1e-3
    shuffle = true
    deterministic = true
    html = "plan.html"   # of another subcommand
    [eval]
    every = 7
    data = ["c"]
  )");
  const Invocation i = parse("train --config " + file.path() + " --lr 0.5 --shuffle=false");
  EXPECT_EQ(i.run.data, (Words{"a", "b"}));
  EXPECT_EQ(i.run.context, 131072);
  EXPECT_EQ(i.run.lr, 0.5);
  EXPECT_FALSE(i.run.shuffle);
  EXPECT_TRUE(i.run.deterministic);
  EXPECT_EQ(i.run.eval_every, 7);
  EXPECT_EQ(i.run.eval_data, (Words{"c"}));
  EXPECT_TRUE(i.given.contains("model"));
}

TEST(TomlFile, ErrorsNameFileLineAndKey) {
  const std::pair<const char*, const char*> rows[] = {
      {"steps = 5\nlerning-rate = 1", ":2: lerning-rate: no such option; the nearest is "},
      {"[eval]\nevry = 1", ":2: eval-evry: no such option; the nearest is eval-every"},
      {"heads_per_stage = 4", ":1: heads_per_stage: no such option; the nearest is heads-per-stage"},
      {"context = 0", ":1: context: '0' is not a size from 1"},
      {"context = -3", ":1: context: '-3' is not a size from 1"},
      {"steps = 1.5", ":1: steps: '1.5' is not a whole number"},
      {"steps = true", ":1: steps: 'true' is not a whole number"},
      {"lr = inf", ":1: lr: 'inf' is not a number from 0 on"},
      {"shuffle = 1", ":1: shuffle: '1' is not true or false"},
      {"out = 5", ":1: out: a TOML integer is not a name"},
      {"out = [\"a\"]", ":1: out: a TOML array is not a name"},
      {"data = []", ":1: data: a TOML array is not a name"},
      {"data = [1]", ":1: data: a TOML integer is not a name"},
      {"steps = 2026-01-01", ":1: steps: a TOML date is not a whole number"},
      {"eval-every = 1\n[eval]\nevery = 1", ": given twice"},
      {"config = \"other.toml\"", ":1: config: a file cannot name another"},
      {"steps = 1\nsteps = 2", ":2: "},
      {"steps = ", ":1: "},
  };
  for (const auto& [text, error] : rows) {
    const File file(text);
    const std::string found = error_of("train --config " + file.path());
    EXPECT_TRUE(found.starts_with(file.path()) && found.find(error) != std::string::npos) << text << "\n" << found;
    EXPECT_EQ(found.find('\n'), std::string::npos) << text;
  }
}

TEST(PrintConfig, ReproducesTheRun) {
  for (const char* line :
       {"train --model tiny --data a.jsonl b.jsonl --context 1M --steps 0 --out out",
        "train --model 1e5 --out it's\\a\"b --tokenizer auto --lr 0.1 --eps 1e-300 --seed 9223372036854775807 --resume",
        "plan --model llama-3-8b --context 10M --ranks 8 --host-memory 2TB --method upipe --json --store /nvme/a",
        "verify --ulysses 2 --ranks 2 --heads-per-stage 3 --query-tile 7 --dtype bf16 --grace 1.5 --shuffle",
        "bench step --emulate-ranks 8 --context 128K",
        "data inspect --data a --context 5 --pack concat --long-documents error"}) {
    const std::string printed = print_config(parse(line));
    const File file(printed);
    const Words words = split(line);
    const bool has_action = !words[1].starts_with("--");
    EXPECT_EQ(print_config(parse(words[0] + (has_action ? " " + words[1] : "") + " --config " + file.path())), printed)
        << line;
  }
}

TEST(PrintConfig, IsToml) {
  const std::string text =
      print_config(parse("train --model tiny --data a b --context 128K --print-config --dtype bf16"));
  EXPECT_TRUE(text.starts_with(
      "# What to run\nmodel = 'tiny'\ndata = [ 'a', 'b' ]\ncontext = 131072\nresume = false\n# Layout\n"
      "device = 'auto'\ndtype = 'bf16'\nranks = 'auto'\n"))
      << text;
  EXPECT_EQ(text.find("print-config"), std::string::npos);
  for (const char* absent : {"\nsteps", "\nout", "\nlog"})  // not given, and without a default
    EXPECT_EQ(text.find(absent), std::string::npos) << absent;
}

TEST(Help, ListsEveryCommandAndOption) {
  for (const CommandInfo& command : commands()) {
    EXPECT_NE(help().find("\n  " + command.name + " "), std::string::npos) << command.name;
    const std::string text = help(command);
    for (const Option& option : options())
      EXPECT_EQ(text.find("\n  --" + option.name + " ") != std::string::npos, option.commands.has(command.command))
          << option.name;
  }
}

TEST(Nearest, IsByEditDistance) {
  EXPECT_EQ(nearest("sttep", {"stop", "step", "strap"}), "step");
  EXPECT_EQ(nearest("", {"abc", "d"}), "d");
}

}  // namespace
}  // namespace untied
