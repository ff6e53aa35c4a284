// The built program from outside: exit codes, one line on stderr when something is wrong, results on stdout.
#include "support/cli.h"

#include <algorithm>

namespace untied::test {
namespace {

TEST_F(Cli, HelpGoesToStdout) {
  for (const char* line : {"", "--help", "-h", "--version", "train --help", "plan -h", "verify --help", "bench --help",
                           "bench step --help", "data --help", "model --help", "train --no-such --help"}) {
    const Outcome outcome = run(line);
    EXPECT_EQ(outcome.code, 0) << line;
    EXPECT_NE(outcome.out, "") << line;
    EXPECT_EQ(outcome.err, "") << line;
  }
  EXPECT_EQ(run("").out, run("--help").out);
}

TEST_F(Cli, MistakesAreOneLineAndACode) {
  const std::string text = file("text.txt", "some text"), empty = file("empty.toml", "");
  const std::string bad_row = file("bad.jsonl", "{\"input_ids\": [1, 2]}\n{\"input_ids\": [1, 300]}\n");
  fs::create_directory(path("no_model"));
  const std::string train = "train --model tiny --context 64 --steps 1 --data " + text + " --out ";
  const struct {
    std::string line;
    int code;
    std::string error;  // a part of the line
  } rows[] = {
      {"trian", 2, "the nearest is train (see `untied --help`)"},
      {"--contxt", 2, "(see `untied --help`)"},
      {"train", 2, "--model, --data, --context, --steps, --out are missing (see `untied train --help`)"},
      {"train --config " + empty, 2, "are missing"},
      {"train --contxt 64", 2, "the nearest is --context"},
      {train + path("out").string() + " --context 64", 2, "--context: given twice"},
      {train + path("out").string() + " --lr nan", 2, "--lr: 'nan' is not a number from 0 on"},
      {train + path("out").string() + " --ring 2", 2, "--ring 2: ring attention is not available yet; 1 is"},
      {train + path("out").string() + " --ranks 3 --ulysses 2", 2, "--ranks 3: not the product of"},
      {train + path("").string(), 2, "is not empty"},
      {train + path("out").string() + " --config " + file("x.toml", "lerning = 1"), 2,
       "x.toml:1: lerning: no such option"},
      {"plan --model tiny", 2, "--context is missing"},
      {"verify --steps", 2, "--steps: needs a value"},
      {"bench", 2, "bench: needs one of ops, attention"},
      {"bench ops --emulate-ranks 2", 2, "only `bench step` can"},
      {"bench ops --device cpu --ranks 2", 2, "--ranks 2: `bench ops` measures one device"},
      {"bench ops --seconds -1", 2, "--seconds: '-1' is not a number from 0 on"},
      {"bench attention --device cpu --model nope", 4, "--model nope: no such folder"},
      {"bench comm --device cpu --ranks 1", 2, "--ranks 1: `bench comm` needs 2 or more"},
      {"bench methods", 2, "bench methods: is not available yet; ops, attention, comm, copies, step are"},
      {"data tokenize", 2, "data tokenize: is not available yet"},
      {"data inspect --context 8 --data " + path("none").string(), 4, path("none").string()},
      {"data inspect --context 8 --model tiny --data " + bad_row, 4, "300"},
      {"data inspect --context 8 --model nope --data " + text, 4, "--model nope: no such folder"},
      {"model", 2, "model: needs one of list, inspect, init"},
      {"model inspect nope", 4, "--model nope: no such folder, and no preset; the nearest preset is tiny"},
      {"model inspect " + path("no_model").string(), 4, "config.json"},
      {"model inspect " + text, 4, "text.txt"},
      {"model init tiny --out " + path("").string(), 2, "is not empty"},
  };
  for (const auto& [line, code, error] : rows) {
    const Outcome outcome = run(line);
    EXPECT_EQ(outcome.code, code) << line << "\n" << outcome.err;
    EXPECT_NE(outcome.err.find(error), std::string::npos) << line << "\n" << outcome.err;
    EXPECT_TRUE(outcome.err.starts_with("untied: ")) << line << "\n" << outcome.err;
    EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << line << "\n" << outcome.err;
    EXPECT_EQ(outcome.out, "") << line;
  }
  EXPECT_FALSE(fs::exists(path("out")));
}

TEST_F(Cli, PrintConfigReproducesItself) {
  const std::string printed = run("train --model tiny --data a b --context 64K --lr 0.01 --print-config").out;
  EXPECT_NE(printed.find("context = 65536"), std::string::npos) << printed;
  EXPECT_EQ(run("train --print-config --config " + file("run.toml", printed)).out, printed);
}

TEST_F(Cli, ModelInitDependsOnTheSeedOnly) {
  for (const auto& [name, seed] : {std::pair{"a", "1"}, {"b", "1"}, {"c", "2"}})
    EXPECT_EQ(run("model init --model tiny --out " + path(name).string() + " --seed " + seed).code, 0);
  const auto weights = [&](const char* name) { return read(path(name) / "model.safetensors"); };
  EXPECT_EQ(weights("a"), weights("b"));
  EXPECT_NE(weights("a"), weights("c"));

  const Outcome inspected = run("model inspect " + path("a").string());
  EXPECT_EQ(inspected.code, 0) << inspected.err;
  EXPECT_NE(inspected.out.find("820352"), std::string::npos) << inspected.out;

  const std::string config = path("a") / "config.json";  // shapes alone are enough, in another type
  EXPECT_EQ(run("model init --model " + config + " --dtype bf16 --seed 1 --out " + path("d").string()).code, 0);
  EXPECT_NE(run("model inspect " + path("d").string()).out.find("dtype       bf16"), std::string::npos);
  EXPECT_LT(fs::file_size(path("d") / "model.safetensors"), fs::file_size(path("a") / "model.safetensors") * 0.51);
}

TEST_F(Cli, ModelListNamesPresets) {
  const std::string list = run("model list").out;
  for (const char* preset : {"tiny", "llama-3.2-1b", "llama-3-8b", "llama-3.1-70b", "qwen3-32b", "mistral-7b"})
    EXPECT_NE(list.find(std::string("\n") + preset + " "), std::string::npos) << preset;
}

TEST_F(Cli, DataInspectShowsTokensAndTargets) {
  const Outcome outcome = run("data inspect --tokenizer bytes --context 4 --data " + file("a.txt", "hello"));
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_NE(outcome.out.find("sequence 0: "), std::string::npos) << outcome.out;
  EXPECT_NE(outcome.out.find("'h'"), std::string::npos) << outcome.out;
}

TEST_F(Cli, AFullDiskBehindStdoutIsAFailure) {
  if (!fs::exists("/dev/full")) GTEST_SKIP();
  fs::create_symlink("/dev/full", path("stdout"));
  const Outcome outcome = run("--help");
  EXPECT_EQ(outcome.code, 1);
  EXPECT_EQ(outcome.err, "untied: cannot write to stdout\n");
}

}  // namespace
}  // namespace untied::test
