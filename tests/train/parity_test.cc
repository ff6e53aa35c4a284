// The same numbers as Hugging Face transformers, on small random checkpoints (tests/fixtures/README.md).
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <sstream>

#include "device/cuda.h"
#include "model/model.h"
#include "support/small_model.h"
#include "train/learning_rate.h"

namespace untied {
namespace {

// fp32 on both sides; against fp64 the expected numbers are off by at most 7e-6 (logits) and 3e-6 (gradients), and the
// faintest fault that the fixtures know moves them by 2e-4.
constexpr double kLogits = 3e-5, kLoss = 1e-5, kGradient = 1e-4, kTenLosses = 3e-5;

struct Fixture {
  std::string folder;
  std::shared_ptr<const CheckpointReader> checkpoint;
  ModelConfig model;
  Json expected;
  SafetensorsFile tensors;
  std::shared_ptr<const Dataset> data;
  dim_t context;

  explicit Fixture(const std::string& name)
      : folder(std::string(UNTIED_FIXTURES) + "/" + name),
        checkpoint(std::make_shared<CheckpointReader>(CheckpointReader::open(folder))), model(checkpoint->config()),
        expected(parse_json(read(folder + "/expected.json"), name)), tensors(folder + "/expected.safetensors"),
        context(expected["context"].get<dim_t>()) {
    checkpoint->check(ModelParameters(model));
    data = Dataset::open({folder + "/batch.jsonl"}, {.context = context, .vocab = model.vocab});
  }
  static std::string read(const std::string& path) {
    std::stringstream text;
    text << std::ifstream(path).rdbuf();
    return text.str();
  }
  std::vector<float> values(const std::string& name) const {
    const auto data = tensors.find(name);
    CHECK(data, "no expected '{}'", name);
    std::vector<float> out(data->bytes.size() / 4);
    to_f32(data->bytes.data(), data->dtype, out.size(), out.data());
    return out;
  }
  // One rank, everything in one piece.
  Layout layout(Backend backend, DType dtype = DType::kF32) const {
    Layout layout = single_rank(context, model);
    layout.target = backend;
    layout.dtype = dtype;
    return layout;
  }
  untied::Run run(const Layout& layout) const { return make_run(layout, model, checkpoint_source(checkpoint)); }
};

class Parity : public testing::TestWithParam<std::tuple<const char*, Backend>> {
 protected:
  void SetUp() override {
    if (backend() == Backend::kCuda && cuda_device_count() == 0) GTEST_SKIP() << "no GPU";
  }
  const char* fixture() const { return std::get<0>(GetParam()); }
  Backend backend() const { return std::get<1>(GetParam()); }
};

TEST_P(Parity, Logits) {
  const Fixture f(fixture());
  const untied::Run run = f.run(f.layout(backend()));
  on_each_rank(run, [&](RankState& rank) {
    const RankBatch batch = upload(rank, f.data->sequence(0).get());
    std::vector<float> logits(f.context * f.model.vocab);
    forward_logits(rank.execution(), batch, Tensor(logits.data(), DType::kF32, {f.context, f.model.vocab}));
    rank.ctx().device.synchronize();
    const std::vector<float> expected = f.values("logits");
    ASSERT_EQ(logits.size(), expected.size());
    for (std::size_t i = 0; i < logits.size(); ++i) ASSERT_NEAR(logits[i], expected[i], kLogits) << "logit " << i;
  });
}

TEST_P(Parity, LossAndEveryGradient) {
  const Fixture f(fixture());
  const std::vector<std::shared_ptr<const Sequence>> batch{f.data->sequence(0)};
  EXPECT_EQ(batch[0]->valid_targets, f.expected["valid_targets"].get<dim_t>());
  const Probe probe = probe_step(f.run(f.layout(backend())), batch);
  EXPECT_NEAR(probe.loss, f.expected["loss"].get<double>(), kLoss);
  EXPECT_NEAR(probe.grad_norm / f.expected["grad_norm"].get<double>(), 1, kGradient);
  std::size_t gradients = 0;
  for (const auto& [name, found] : probe.gradients) {
    const std::vector<float> expected = f.values("grad." + name);
    ASSERT_EQ(found.size(), expected.size()) << name;
    double difference = 0, norm = 0;
    for (std::size_t i = 0; i < found.size(); ++i) {
      difference += std::pow(double(found[i]) - expected[i], 2);
      norm += std::pow(double(expected[i]), 2);
    }
    EXPECT_LE(std::sqrt(difference), kGradient * std::sqrt(norm) + 1e-9) << name;
    ++gradients;
  }
  for (const SafetensorsEntry& t : f.tensors.tensors()) gradients -= t.name.starts_with("grad.");
  EXPECT_EQ(gradients, 0u) << "parameters without a gradient, or the reverse";
}

// On two ranks with small tiles and everything streamed, so that loading and training agree there too.
std::vector<StepStats> ten_steps(const Fixture& f, Backend backend, DType dtype) {
  const Json& training = f.expected["training"];
  RunConfig config;
  config.lr = training["learning_rate"].get<double>();
  config.steps = training["steps"].get<dim_t>();
  config.warmup = training["warmup"].get<dim_t>();
  Layout layout = f.layout(backend, dtype);
  layout.ranks = layout.ulysses = backend == Backend::kCuda ? std::min(2, cuda_device_count()) : 2;
  layout.tokens = ceil_div(f.context, layout.ranks);
  layout.heads_per_stage = 2;
  layout.tiles = {7, 5, 11};
  layout.store = Tier::kHost;
  layout.optimizer = MemoryKind::kHost;
  const untied::Run run = f.run(layout);
  std::vector<StepStats> stats;
  on_each_rank(run, [&](RankState& rank) {
    for (const Json& line : f.expected["log"]) {
      const dim_t step = line["step"].get<dim_t>();
      const std::vector<std::shared_ptr<const Sequence>> batch{f.data->sequence(line["sequence"].get<dim_t>())};
      const StepStats s = train_step(rank, batch,
                                     {.adamw = {.lr = learning_rate(config, step),
                                                .beta1 = training["beta1"].get<double>(),
                                                .beta2 = training["beta2"].get<double>(),
                                                .eps = training["epsilon"].get<double>(),
                                                .weight_decay = training["weight_decay"].get<double>(),
                                                .step = step},
                                      .clip = training["clip_norm"].get<double>()});
      EXPECT_NEAR(learning_rate(config, step), line["learning_rate"].get<double>(), 1e-12);
      if (rank.world->rank() == 0) stats.push_back(s);
    }
  });
  return stats;
}

TEST_P(Parity, TenAdamWLosses) {
  const Fixture f(fixture());
  const std::vector<StepStats> stats = ten_steps(f, backend(), DType::kF32);
  ASSERT_EQ(stats.size(), 10u);
  for (std::size_t i = 0; i < stats.size(); ++i) {
    EXPECT_NEAR(stats[i].loss, f.expected["log"][i]["loss"].get<double>(), kTenLosses) << "step " << i + 1;
    EXPECT_NEAR(stats[i].grad_norm / f.expected["log"][i]["grad_norm"].get<double>(), 1, 1e-4) << "step " << i + 1;
  }
}

constexpr const char* kFixtures[] = {"llama_default", "llama_llama3_tied", "llama_headdim",
                                     "llama_bias",    "llama_oldconfig",   "llama_packed"};
std::string name_of_case(const testing::TestParamInfo<Parity::ParamType>& info) {
  return std::string(std::get<0>(info.param)) + (std::get<1>(info.param) == Backend::kCuda ? "_Cuda" : "");
}
INSTANTIATE_TEST_SUITE_P(Cases, Parity, testing::Combine(testing::ValuesIn(kFixtures), testing::Values(Backend::kCpu)),
                         name_of_case);
#ifdef UNTIED_HAS_CUDA
INSTANTIATE_TEST_SUITE_P(Gpu, Parity, testing::Combine(testing::ValuesIn(kFixtures), testing::Values(Backend::kCuda)),
                         name_of_case);

// bf16 weights and activations, fp32 master weights: a loss moves by a fraction of bf16's half unit, 2e-3 of it.
class ParityInBf16 : public Parity {};
TEST_P(ParityInBf16, TenLosses) {
  const Fixture f(fixture());
  const std::vector<StepStats> stats = ten_steps(f, backend(), DType::kBF16);
  ASSERT_EQ(stats.size(), 10u);
  for (std::size_t i = 0; i < stats.size(); ++i)
    EXPECT_NEAR(stats[i].loss / f.expected["log"][i]["loss"].get<double>(), 1, 5e-3) << "step " << i + 1;
}
INSTANTIATE_TEST_SUITE_P(Gpu, ParityInBf16,
                         testing::Combine(testing::ValuesIn(kFixtures), testing::Values(Backend::kCuda)), name_of_case);
#endif

}  // namespace
}  // namespace untied
