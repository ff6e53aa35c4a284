#include "app/validate.h"

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

namespace fs = std::filesystem;

constexpr const char* kTrain = "train --model tiny --data a --context 64 --steps 10 --out /no/such/folder";
constexpr const char* kVerify = "verify --model tiny --data a --context 64";
constexpr const char* kPlan = "plan --model tiny --context 64";

// "" when the line is accepted.
std::string error_of(const std::string& line) {
  std::istringstream in(line);
  try {
    validate(parse_command_line({std::istream_iterator<std::string>(in), {}}));
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

TEST(Validate, AcceptsWhatIsLegal) {
  for (const std::string& line : std::initializer_list<std::string>{
           kTrain, kVerify, kPlan, std::string(kTrain) + " --warmup 10",
           std::string(kTrain) + " --device cpu --dtype fp32 --ring 1 --data-parallel 1 --store host --tokenizer bytes",
           std::string(kTrain) + " --ranks 4 --method ulysses",
           std::string(kTrain) + " --ranks 4 --ulysses 4 --method upipe", std::string(kTrain) + " --ulysses 4",
           std::string(kVerify) + " --ranks 2 --save-activations attention",
           std::string(kPlan) + " --device cuda --dtype bf16 --ranks 8", std::string(kPlan) + " --data a --warmup 100",
           "bench ops", "bench step --emulate-ranks 8 --ulysses 8", "data inspect --data a --context 8", "model list",
           "model inspect tiny", "model init tiny --out /no/such/folder --dtype bf16"}) {
    EXPECT_EQ(error_of(line), "") << line;
  }
}

TEST(Validate, NamesWhatIsMissing) {
  const std::pair<const char*, const char*> rows[] = {
      {"train", "--model, --data, --context, --steps, --out are missing"},
      {"train --model tiny --data a --context 64 --steps 10", "--out is missing"},
      {"plan --model tiny", "--context is missing"},
      {"verify --model tiny --context 1", "--data is missing"},
      {"data inspect --context 1", "--data is missing"},
      {"model inspect", "--model is missing"},
      {"model init --model tiny", "--out is missing"},
  };
  for (const auto& [line, error] : rows) EXPECT_EQ(error_of(line), error) << line;
}

TEST(Validate, RefusesWhatIsNotAvailableYet) {
  const std::pair<const char*, const char*> rows[] = {
      {"--ring 2", "--ring 2: ring attention is not available yet; 1 is"},
      {"--method ring", "--method ring: ring attention is not available yet; ulysses, upipe, untied are"},
      {"--method usp", "--method usp: ring attention is not available yet; ulysses, upipe, untied are"},
      {"--data-parallel 2", "--data-parallel 2: data parallelism is not available yet; 1, auto are"},
      {"--save-activations all",
       "--save-activations all: this policy is not available yet; recompute, attention, auto are"},
      {"--save-activations chain",
       "--save-activations chain: this policy is not available yet; recompute, attention, auto are"},
      {"--store /nvme", "--store /nvme: a store in files is not available yet; device, host, auto are"},
      {"--tokenizer t.json", "--tokenizer t.json: a tokenizer file is not available yet; bytes is"},
      {"--resume", "--resume: resuming is not available yet"},
      {"--checkpoint-every 5", "--checkpoint-every 5: a checkpoint before the end is not available yet; 0 is"},
      {"--keep 2", "--keep 2: a checkpoint before the end is not available yet; 0 is"},
#ifndef UNTIED_HAS_CUDA
      {"--device cuda", "--device cuda: this build has no cuda backend (make build CUDA=1); cpu, auto are"},
      {"--dtype bf16", "--dtype bf16: the cpu computes in fp32; bf16 needs --device cuda"},
#endif
  };
  for (const char* command : {kTrain, kVerify})
    for (const auto& [option, error] : rows) EXPECT_EQ(error_of(std::string(command) + " " + option), error);
}

TEST(Validate, RefusesWhatDoesNotGoTogether) {
  const std::pair<const char*, const char*> rows[] = {
      {"--device cpu --dtype bf16", "--dtype bf16: the cpu computes in fp32; bf16 needs --device cuda"},
      {"--ranks 6 --ulysses 4", "--ranks 6: not the product of --ring 1, --ulysses 4 and --data-parallel auto"},
      {"--ranks 2 --ulysses 4", "--ranks 2: not the product of --ring 1, --ulysses 4 and --data-parallel auto"},
      {"--ranks 4 --ulysses 2", "--ranks 4: 2 to a sequence leave --data-parallel 2, which is not available yet; 1 is"},
      {"--ranks 4 --ulysses 2 --data-parallel 1",
       "--ranks 4: not the product of --ring 1, --ulysses 2 and --data-parallel 1"},
      {"--warmup 11", "--warmup 11: more than --steps 10"},
      {"--eval-every 5", "--eval-every 5: needs --eval-data"},
  };
  for (const auto& [options, error] : rows) EXPECT_EQ(error_of(std::string(kTrain) + " " + options), error);
  EXPECT_EQ(error_of("bench ops --emulate-ranks 2"), "--emulate-ranks 2: only `bench step` can");
}

TEST(Validate, OutMustBeNewOrEmpty) {
  const fs::path out = fs::path(testing::TempDir()) / format("untied_validate.{}", getpid());
  fs::remove_all(out);
  fs::create_directory(out);
  for (const std::string& command :
       std::initializer_list<std::string>{"train --model tiny --data a --context 64 --steps 10 --out ",
                                          "model init --model tiny --out "}) {
    EXPECT_EQ(error_of(command + out.string()), "");
    std::ofstream(out / "file") << "x";
    EXPECT_EQ(error_of(command + out.string()),
              "--out " + out.string() + ": is not empty; a run needs a folder of its own, or --resume");
    EXPECT_EQ(error_of(command + (out / "file").string()), "--out " + (out / "file").string() + ": is not a folder");
    fs::remove(out / "file");
  }
  EXPECT_EQ(error_of(std::string(kVerify) + " --out /"), "");  // writes nothing
  fs::remove_all(out);
}

struct LayoutCase {
  const char* method;
  int ranks, ulysses, heads_per_stage;
  dim_t query_tile;
  std::string layout;  // "ring ulysses data-parallel heads-per-stage query-tile", or the error
};

TEST(ApplyMethod, TurnsMethodsIntoNumbers) {
  const LayoutCase cases[] = {
      {"", 8, 0, 0, 0, "1 8 1 0 0"},
      {"untied", 8, 8, 4, 16, "1 8 1 4 16"},
      {"ulysses", 8, 0, 0, 0, "1 8 1 32 1000"},
      {"ulysses", 1, 0, 32, 1000, "1 1 1 32 1000"},
      {"upipe", 8, 0, 0, 0, "1 8 1 8 1000"},
      {"upipe", 64, 0, 0, 0, "1 64 1 32 1000"},
      {"ring", 4, 0, 0, 0, "4 1 1 32 1000"},
      {"ulysses", 8, 0, 8, 0, "--heads-per-stage 8: --method ulysses has 32"},
      {"upipe", 8, 0, 0, 124, "--query-tile 124: --method upipe takes all 125 rows of a rank at once"},
      {"ring", 4, 2, 0, 0, "--ulysses 2: --method ring keeps heads together"},
      {"usp", 4, 2, 0, 0, "--method usp: needs --ring and --ulysses, both above 1"},
      {"", 4, 3, 0, 0, "--ranks 4: not the product of --ring 1, --ulysses 3 and --data-parallel auto"},
  };
  for (const LayoutCase& c : cases) {
    RunConfig config{.context = 1000,
                     .ranks = c.ranks,
                     .ulysses = c.ulysses,
                     .heads_per_stage = c.heads_per_stage,
                     .query_tile = c.query_tile,
                     .method = c.method};
    std::string layout;
    try {
      apply_method(config, 32);
      layout = format("{} {} {} {} {}", config.ring, config.ulysses, config.data_parallel, config.heads_per_stage,
                      config.query_tile);
    } catch (const ConfigError& error) {
      layout = error.what();
    }
    EXPECT_EQ(layout, c.layout) << c.method << " on " << c.ranks;
  }
}

TEST(ApplyMethod, MethodsWithARing) {
  RunConfig usp{.context = 1000, .ranks = 8, .ring = 2, .ulysses = 4, .method = "usp"};
  apply_method(usp, 32);
  EXPECT_EQ(usp.heads_per_stage, 32);
  RunConfig upipe{.context = 1000, .ranks = 8, .ring = 2, .method = "upipe"};
  EXPECT_THROW(apply_method(upipe, 32), ConfigError);
}

}  // namespace
}  // namespace untied
