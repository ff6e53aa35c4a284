// The program on the GPUs that are here.
#ifdef UNTIED_HAS_CUDA

#include <algorithm>

#include "device/cuda.h"
#include "io/json.h"
#include "support/cli.h"

namespace untied::test {
namespace {

class CudaRun : public Cli {
 protected:
  void SetUp() override {
    Cli::SetUp();
    show_gpus();
    if (cuda_device_count() == 0) GTEST_SKIP() << "no GPU";
  }
  std::string text() const {
    std::string words;
    for (int i = 0; i < 400; ++i) words += "the same words again and again ";
    return file("text.txt", words);
  }
};

// On all GPUs, in bf16, which is what `auto` means where there are GPUs.
TEST_F(CudaRun, TrainsOnAllGpus) {
  const Outcome o = run("train --model tiny --data " + text() + " --context 1024 --steps 8 --lr 1e-2 --out " +
                        path("a").string() + " --log " + path("log").string());
  ASSERT_EQ(o.code, 0) << o.err;
  EXPECT_NE(o.err.find(format("{} rank", cuda_device_count())), std::string::npos) << o.err;
  EXPECT_NE(o.err.find("cuda, bf16"), std::string::npos) << o.err;
  std::vector<Json> steps;
  std::istringstream log(read(path("log")));
  for (std::string line; std::getline(log, line);)
    if (Json json = parse_json(line, "log"); json["kind"] == "step") steps.push_back(json);
  ASSERT_EQ(steps.size(), 8u);
  EXPECT_LT(steps[7]["loss"].get<double>(), 0.7 * steps[0]["loss"].get<double>());
  EXPECT_EQ(steps[7]["device_peak_bytes"], steps[7]["device_planned_bytes"]);
}

TEST_F(CudaRun, Verifies) {
  for (const std::string dtype : {"fp32", "bf16"}) {
    const Outcome o = run("verify --model tiny --data " + text() + " --context 512 --query-tile 100 --dtype " + dtype);
    EXPECT_EQ(o.code, 0) << o.out << o.err;
    EXPECT_NE(o.out.find("they agree"), std::string::npos) << o.out;
  }
}

TEST_F(CudaRun, MeasuresCopies) {
  const Outcome o = run("bench copies --seconds 0 --json");
  ASSERT_EQ(o.code, 0) << o.err;
  const Json profile = parse_json(o.out, "bench");
  ASSERT_FALSE(profile["rates"].empty());
  for (const Json& rate : profile["rates"]) EXPECT_GT(rate["burst"].get<double>(), 1.0) << rate.dump();
}

TEST_F(CudaRun, SaysWhatIsMissing) {
  const std::string train =
      "train --model tiny --data " + text() + " --context 256 --steps 1 --out " + path("o").string() + " --device cuda";
  const int gpus = cuda_device_count();
  const Outcome more = run(train + format(" --ranks {}", gpus + 1));
  EXPECT_EQ(more.code, 5);
  EXPECT_EQ(more.err, format("untied: {} GPUs wanted, {} here\n", gpus + 1, gpus));
  hide_gpus();
  const Outcome none = run(train);
  EXPECT_EQ(none.code, 5);
  EXPECT_EQ(none.err, "untied: the NVIDIA driver finds no GPU (CUDA_VISIBLE_DEVICES is '')\n");
  show_gpus();
  const Outcome deterministic = run(train + " --deterministic");
  EXPECT_EQ(deterministic.code, 2);
  EXPECT_NE(deterministic.err.find("--deterministic: not available yet for bf16 on cuda"), std::string::npos);
}

// On a machine without a GPU; `auto` takes the cpu there.
class NoGpu : public Cli {};
TEST_F(NoGpu, SaysWhyAndAutoTakesTheCpu) {
  const std::string train = "train --model tiny --data " + file("text.txt", std::string(600, 'x')) +
                            " --context 128 --steps 1 --out " + path("o").string();
  const Outcome gpu = run(train + " --device cuda");
  EXPECT_EQ(gpu.code, 5);
  EXPECT_EQ(std::count(gpu.err.begin(), gpu.err.end(), '\n'), 1) << gpu.err;
  EXPECT_TRUE(gpu.err.find("no NVIDIA driver") != std::string::npos ||
              gpu.err.find("finds no GPU") != std::string::npos)
      << gpu.err;
  const Outcome automatic = run(train);
  EXPECT_EQ(automatic.code, 0) << automatic.err;
  EXPECT_NE(automatic.err.find("(cpu, fp32)"), std::string::npos) << automatic.err;
}

}  // namespace
}  // namespace untied::test

#endif
