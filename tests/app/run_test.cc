// Whole runs of the built program: train, verify, plan, stop.
#include <chrono>
#include <thread>

#include "io/checkpoint.h"
#include "support/cli.h"

namespace untied::test {
namespace {

std::vector<Json> lines_of(const std::string& text, const std::string& kind) {
  std::vector<Json> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);)
    if (Json json = parse_json(line, "log"); json["kind"] == kind) lines.push_back(json);
  return lines;
}

class Run : public Cli {
 protected:
  std::string text() const {
    std::string words;
    for (int i = 0; i < 400; ++i) words += "the same words again and again ";
    return file("text.txt", words);
  }
};

TEST_F(Run, TrainsSavesLogsAndTheModelLoadsAgain) {
  const std::string common = " --data " + text() + " --context 256 --ranks 2 --heads-per-stage 4 --lr 1e-2";
  const Outcome first = run("train --model tiny --steps 6 --out " + path("a").string() + " --log " +
                            path("a.jsonl").string() + common + " --eval-data " + text() + " --eval-every 3");
  ASSERT_EQ(first.code, 0) << first.err;
  const std::string log = read(path("a.jsonl"));
  const std::vector<Json> steps = lines_of(log, "step");
  ASSERT_EQ(steps.size(), 6u);
  for (const char* key :
       {"step", "loss", "grad_norm", "lr", "tokens", "valid_tokens", "seconds", "tokens_per_second",
        "tokens_per_second_per_rank", "mfu", "device_peak_bytes", "device_planned_bytes", "host_peak_bytes"})
    EXPECT_TRUE(steps[0].contains(key)) << key;
  EXPECT_LT(steps[5]["loss"].get<double>(), 0.7 * steps[0]["loss"].get<double>());
  EXPECT_EQ(steps[5]["device_peak_bytes"], steps[5]["device_planned_bytes"]);
  EXPECT_EQ(steps[0]["tokens"].get<int>(), 256);
  EXPECT_EQ(lines_of(log, "eval").size(), 2u);
  for (const char* kind : {"config", "plan", "checkpoint", "end"}) EXPECT_EQ(lines_of(log, kind).size(), 1u) << kind;
  EXPECT_NE(first.out.find("step     6"), std::string::npos);

  // Step 7 of one run is not step 1 of the next, but its loss starts where the first one came to.
  const Outcome second = run("train --model " + path("a").string() + " --steps 1 --out " + path("b").string() +
                             " --log " + path("b.jsonl").string() + common);
  ASSERT_EQ(second.code, 0) << second.err;
  EXPECT_LT(lines_of(read(path("b.jsonl")), "step")[0]["loss"].get<double>(), 0.8 * steps[0]["loss"].get<double>());
}

// With a rate of zero the checkpoint comes back byte for byte, heads in their order, on any layout.
TEST_F(Run, WhatIsNotTrainedComesBackByteForByte) {
  for (const char* name : {"llama_default", "llama_headdim", "llama_bias", "llama_oldconfig", "llama_llama3_tied"}) {
    const std::string model = std::string(UNTIED_FIXTURES) + "/" + name, out = path(name).string();
    const Outcome outcome =
        run("train --model " + model + " --data " + model + "/batch.jsonl --context 48 --steps 1 --lr 0 " +
            "--ranks 3 --heads-per-stage 2 --query-tile 5 --optimizer-state host --out " + out);
    ASSERT_EQ(outcome.code, 0) << outcome.err;
    const CheckpointReader before = CheckpointReader::open(model), after = CheckpointReader::open(out);
    const ModelParameters table(before.config());
    for (const Parameter& p : table.parameters()) {
      const TensorData a = before.tensor(p.name), b = after.tensor(p.name);
      EXPECT_EQ(a.dtype, b.dtype) << p.name;
      EXPECT_TRUE(std::equal(a.bytes.begin(), a.bytes.end(), b.bytes.begin(), b.bytes.end())) << name << " " << p.name;
    }
    EXPECT_EQ(read(fs::path(out) / "config.json"), read(fs::path(model) / "config.json")) << name;
    EXPECT_EQ(read(fs::path(out) / "generation_config.json"), read(fs::path(model) / "generation_config.json")) << name;
  }
}

TEST_F(Run, VerifyAgreesOnARealCheckpoint) {
  const std::string model = std::string(UNTIED_FIXTURES) + "/llama_bias";
  const Outcome outcome = run("verify --model " + model + " --data " + model + "/batch.jsonl --context 48 --ranks 4 " +
                              "--heads-per-stage 2 --query-tile 5 --store host --optimizer-state host");
  EXPECT_EQ(outcome.code, 0) << outcome.out << outcome.err;
  EXPECT_NE(outcome.out.find("they agree"), std::string::npos);
}

TEST_F(Run, RelativeOutFolder) {
  const fs::path before = fs::current_path();
  fs::create_directory(path("work"));
  const std::string data = text();
  fs::current_path(path("work"));
  const Outcome outcome = run("train --model tiny --context 64 --steps 1 --out out --data " + data);
  fs::current_path(before);
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_TRUE(fs::exists(path("work") / "out" / "config.json"));
}

TEST_F(Run, DryRunAndWhatDoesNotFitWriteNothing) {
  const std::string train = "train --model tiny --steps 1 --data " + text() + " --out " + path("out").string();
  EXPECT_EQ(run(train + " --context 64 --dry-run").code, 0);
  const Outcome outcome = run(train + " --context 64K --device-memory 8MB --host-memory 8MB");
  EXPECT_EQ(outcome.code, 3);
  EXPECT_NE(outcome.err.find("--context 65536"), std::string::npos) << outcome.err;
  EXPECT_NE(outcome.err.find("the longest context that fits is"), std::string::npos) << outcome.err;
  EXPECT_FALSE(fs::exists(path("out")));
}

TEST_F(Run, AFolderThatCannotBeWrittenShowsBeforeTheFirstStep) {
  const Outcome outcome = run("train --model tiny --steps 1 --context 64 --out /proc/untied/out --data " + text());
  EXPECT_NE(outcome.code, 0);
  EXPECT_EQ(outcome.out, "");
  EXPECT_NE(outcome.err.find("/proc/untied"), std::string::npos) << outcome.err;
}

TEST_F(Run, PlanOfTheLongestPublishedContext) {
  const Outcome outcome = run("plan --model llama-3-8b --context 5M --ranks 8 --json");
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const Json plan = parse_json(outcome.out, "plan");
  for (const char* key : {"fits", "device", "host", "disk", "step_seconds", "tokens_per_second_per_rank",
                          "longest_context", "limited_by", "layout"})
    EXPECT_TRUE(plan.contains(key)) << key;
  EXPECT_TRUE(plan["fits"].get<bool>());
  EXPECT_GT(plan["longest_context"].get<dim_t>(), dim_t{5} << 20);
  EXPECT_EQ(run("plan --model llama-3-8b --context 64M --ranks 8 --json").code, 3);
  EXPECT_EQ(run("plan --model llama-3-8b --context 900G --ranks 8").code, 2);
}

// A signal ends a run after the step, or with no grace inside it; either way the model is there.
TEST_F(Run, StopsOnASignalAndSaves) {
  for (const char* grace : {"60", "0"}) {
    const std::string out = path(std::string("out") + grace).string(), log = path(std::string("log") + grace).string();
    const pid_t child = start("train --model tiny --context 1K --ranks 2 --steps 100000 --data " + text() + " --out " +
                              out + " --log " + log + " --grace " + grace);
    for (int i = 0; i < 600 && lines_of(read(log), "step").size() < 2; ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
    kill(child, SIGTERM);
    const Outcome outcome = wait(child);
    EXPECT_EQ(outcome.code, 75) << outcome.err;
    EXPECT_NO_THROW(CheckpointReader::open(out)) << grace;
  }
}

}  // namespace
}  // namespace untied::test
