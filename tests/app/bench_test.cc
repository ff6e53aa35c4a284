// The built program's benches on the cpu, a burst a row: every row is there, and no rate is nonsense.
#include <cmath>
#include <map>

#include "app/bench_report.h"
#include "support/cli.h"

namespace untied::test {
namespace {

class Bench : public Cli {
 protected:
  // Rates by name, of a profile whose every row makes sense.
  std::map<std::string, std::vector<Json>> rates_of(const std::string& line, const std::string& bench,
                                                    int count) const {
    const Outcome outcome = run("bench " + bench + " --device cpu --json " + line);
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    const Json profile = parse_json(outcome.out, "stdout");
    EXPECT_EQ(profile["kind"], "hardware_profile");
    EXPECT_EQ(profile["device"], "cpu");
    EXPECT_EQ(profile["count"], count);
    EXPECT_GT(profile["memory_bytes"].get<dim_t>(), 0);
    std::map<std::string, std::vector<Json>> rates;
    for (const Json& rate : profile["rates"]) {
      EXPECT_EQ(rate["bench"], bench);
      EXPECT_FALSE(rate["shape"].get<std::string>().empty());
      for (const char* number : {"burst", "sustained", "limit"}) {
        if (rate.at(number).is_null()) continue;
        EXPECT_TRUE(std::isfinite(rate[number].get<double>())) << rate;
        EXPECT_GT(rate[number].get<double>(), 0) << rate;
      }
      EXPECT_FALSE(rate["burst"].is_null()) << rate;
      rates[rate["name"]].push_back(rate);
    }
    return rates;
  }
};

TEST_F(Bench, Ops) {
  const auto rates = rates_of("--seconds 0", "ops", 1);
  for (const char* name : {"matmul fp32", "matmul fp32, dx", "matmul fp32, dw += in fp32"}) {
    ASSERT_TRUE(rates.contains(name)) << name;
    EXPECT_EQ(rates.at(name)[0]["unit"], "TFLOP/s");
    EXPECT_TRUE(rates.at(name)[0]["limit"].is_null());  // of the cpu nothing is known
    EXPECT_TRUE(rates.at(name)[0]["sustained"].is_null());
  }
  EXPECT_EQ(rates.at("matmul fp32").size(), 2u);
  const Json& copy = rates.at("device copy")[0];
  for (const char* name :
       {"rmsnorm", "rmsnorm backward", "add", "swiglu", "swiglu backward", "rope angles", "heads pack",
        "heads pack, rotated", "heads unpack", "heads unpack, rotated", "cross entropy", "embedding",
        "embedding backward", "sum of squares", "cast fp32 to bf16", "adamw"}) {
    ASSERT_TRUE(rates.contains(name)) << name;
    EXPECT_EQ(rates.at(name)[0]["unit"], "GB/s");
    EXPECT_EQ(rates.at(name)[0]["limit"], copy["burst"]) << name;
  }
}

TEST_F(Bench, AttentionOfAModelsHeads) {
  const auto rates = rates_of("--seconds 0.05 --context 300", "attention", 1);
  ASSERT_EQ(rates.size(), 2u);
  for (const auto& [name, rows] : rates) {  // 1 and 4 heads, 128 rows and the whole
    ASSERT_EQ(rows.size(), 4u) << name;
    EXPECT_EQ(rows[0]["shape"], "1x128x300x16");
    EXPECT_EQ(rows[3]["shape"], "4x300x300x16");
    EXPECT_FALSE(rows[0]["sustained"].is_null());
  }
}

TEST_F(Bench, CollectivesAmongRanks) {
  const auto rates = rates_of("--seconds 0.05 --ranks 3", "comm", 3);
  for (const char* name : {"all to all", "all gather", "reduce scatter", "all reduce"}) {
    ASSERT_TRUE(rates.contains(name)) << name;
    EXPECT_EQ(rates.at(name).size(), 2u);
    EXPECT_FALSE(rates.at(name)[0]["sustained"].is_null());
  }
}

TEST_F(Bench, Copies) {
  const auto rates = rates_of("--seconds 0 --ranks 2", "copies", 2);
  for (const char* name : {"host to device", "device to host", "both at once, each way", "device, read and written"})
    EXPECT_TRUE(rates.contains(name)) << name;
}

TEST_F(Bench, PrintsATable) {
  const Outcome outcome = run("bench copies --device cpu --seconds 0");
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(outcome.err, "");
  EXPECT_TRUE(outcome.out.starts_with("1 x cpu, ")) << outcome.out;
  EXPECT_NE(outcome.out.find("\nhost to device "), std::string::npos) << outcome.out;
}

// The ops of a step on the first rank, and what they add up to.
TEST_F(Bench, StepByOp) {
  const Outcome outcome =
      run("bench step --model tiny --context 128 --ranks 2 --steps 2 --device cpu --profile --json");
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const Json step = parse_json(outcome.out, "stdout");
  EXPECT_EQ(step["kind"], "bench_step");
  EXPECT_TRUE(step["mfu"].is_null());
  double on_compute = 0;
  std::map<std::string, dim_t> calls;
  for (const Json& op : step["ops"]) {
    calls[op["op"]] += op["calls"].get<dim_t>();
    if (op["stream"] == "compute") on_compute += op["seconds"].get<double>();
  }
  for (const char* op :
       {"matmul", "attention_forward", "attention_backward", "all_to_all", "all_gather", "reduce_scatter", "adamw"})
    EXPECT_GT(calls[op], 0) << op;
  EXPECT_EQ(calls["embedding_forward"], 1);
  EXPECT_NEAR(on_compute + step["waiting_seconds"].get<double>(), step["profiled_seconds"].get<double>(), 1e-6);
}

TEST(BenchReport, WhatIsNotKnownIsNullOrADash) {
  const Rate known{"ops", "matmul bf16", "8192x8192x8192", "TFLOP/s", 781.23, 670, 989.4};
  const Rate burst{"ops", "add", "64x64", "GB/s", 0.0625, std::nullopt, std::nullopt};
  EXPECT_NE(table_row(known).find("781.2     670.0     989.4  67.7 %\n"), std::string::npos) << table_row(known);
  EXPECT_NE(table_row(burst).find("0.06250         -         -       -\n"), std::string::npos) << table_row(burst);
  const Json json = profile_json({"NVIDIA H200", 8, 150, 4, {known, burst}});
  EXPECT_EQ(
      json.dump(),
      R"({"kind":"hardware_profile","device":"NVIDIA H200","count":8,"memory_bytes":150,"sustained_seconds":4.0,"rates":[)"
      R"({"bench":"ops","name":"matmul bf16","shape":"8192x8192x8192","unit":"TFLOP/s","burst":781.23,)"
      R"("sustained":670.0,"limit":989.4},)"
      R"({"bench":"ops","name":"add","shape":"64x64","unit":"GB/s","burst":0.0625,"sustained":null,"limit":null}]})");
}

}  // namespace
}  // namespace untied::test
