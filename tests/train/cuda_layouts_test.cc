// The layouts of layouts_test.cc on the GPUs that are here: against one rank of the cpu in fp32, against one GPU in bf16, and
// plan against run to the byte.
#ifdef UNTIED_HAS_CUDA

#include <gtest/gtest.h>

#include <cmath>

#include "device/cuda.h"
#include "support/layout_cases.h"

namespace untied {
namespace {

using layouts::Case, layouts::kHost, layouts::kHostState;

std::shared_ptr<const WeightSource> weights() { return random_source(3, 0.2); }

struct Tolerance {
  double loss, gradient;
};
// fp32: the contract's; sums in another order than the cpu's give about 1e-6.
constexpr Tolerance kFp32{1e-5, 1e-4};
// bf16 beside bf16, for each block of the model: the contract's 2e-2 is for two blocks of real width; sums over rows of 40 and
// 33 tokens average less of the rounding of what ranks, tiles and heads hand on (seen: up to 1.5e-2 a block).
constexpr Tolerance kBf16{5e-3, 2e-2};
// bf16 beside fp32, for each block: each of the dozen tensors on the way is rounded by 2^-9, weights too, and at a deviation of 0.2
// a block amplifies what it gets (seen: up to 4e-2 a block). A fault moves a gradient by its own size.
constexpr Tolerance kBf16BesideFp32{5e-3, 5e-2};

void expect_near(const Probe& probe, const Probe& reference, Tolerance tolerance) {
  ASSERT_TRUE(std::isfinite(reference.loss) && reference.loss > 0.1);
  EXPECT_NEAR(probe.loss / reference.loss, 1, tolerance.loss);
  EXPECT_NEAR(probe.grad_norm / reference.grad_norm, 1, tolerance.gradient);
  const Difference worst = worst_difference(probe, reference);
  EXPECT_LE(worst.worst, tolerance.gradient) << worst.parameter;
}

void expect_right(Case c, DType dtype) {
  c.target = Backend::kCuda;
  c.dtype = dtype;
  SCOPED_TRACE(c.str());
  const auto batch = c.batch();
  dim_t valid = 0;
  for (const auto& s : batch) valid += s->valid_targets;
  if (valid == 0) return;  // such a step is never run
  const Layout one = single_rank(c.context, c.model(), c.accumulate);
  const Probe cpu = probe_step(make_run(one, c.model(), weights()), batch);
  const untied::Run run = make_run(c.layout(), c.model(), weights());
  // Behind the step that is compared, the program that a plan traces, for real, in exactly the memory that was planned.
  const Probe probe = probe_step(run, batch, [&](RankState& rank) { layouts::run_planned_program(rank, batch); });
  EXPECT_EQ(probe.device_peaks, run.device_bytes);
  EXPECT_EQ(probe.host_peaks, run.host_bytes);
  if (dtype == DType::kF32) {
    expect_near(probe, cpu, kFp32);
    return;
  }
  const auto blocks = static_cast<double>(c.blocks);
  const auto times = [&](Tolerance t) { return Tolerance{t.loss * blocks, t.gradient * blocks}; };
  expect_near(probe, cpu, times(kBf16BesideFp32));
  Layout one_gpu = one;
  one_gpu.target = Backend::kCuda;
  one_gpu.dtype = dtype;
  expect_near(probe, probe_step(make_run(one_gpu, c.model(), weights()), batch), times(kBf16));
}

class CudaLayouts : public testing::TestWithParam<DType> {
 protected:
  void SetUp() override {
    if (cuda_device_count() == 0) GTEST_SKIP() << "no GPU";
  }
  // Those of the table that these GPUs have ranks for; all of them are about 60 with two.
  static std::vector<Case> cases() {
    std::vector<Case> mine;
    for (const Case& c : layouts::table())
      if (c.ranks <= cuda_device_count()) mine.push_back(c);
    return mine;
  }
};

TEST_P(CudaLayouts, TableIsRightAndAsPlanned) {
  ASSERT_GE(cases().size(), 5u);
  for (const Case& c : cases()) expect_right(c, GetParam());
}

TEST_P(CudaLayouts, RandomOnesAreRightAndAsPlanned) {
  std::mt19937 random(20261130);
  for (int done = 0; done < 8;) {
    const Case c = layouts::random_case(random);
    if (c.ranks > cuda_device_count()) continue;
    expect_right(c, GetParam());
    ++done;
  }
}

// Where things are kept must not change a bit. fp32: its attention has one order of sums; cuDNN's dq has not.
TEST(CudaRuns, StreamingChangesNoBit) {
  if (cuda_device_count() == 0) GTEST_SKIP() << "no GPU";
  std::vector<double> losses[2];
  for (int streamed : {0, 1}) {
    Case c{.ranks = std::min(2, cuda_device_count()), .per_stage = 2, .query = 4, .mlp = 5, .loss = 6};
    c.target = Backend::kCuda;
    if (streamed) c.store = kHost, c.optimizer = kHostState;
    on_each_rank(make_run(c.layout(), c.model(), weights()), [&](RankState& rank) {
      for (int i = 1; i <= 20; ++i) {
        const std::vector<std::shared_ptr<const Sequence>> batch{make_sequence(33, {20, 13}, 61, 100 + i)};
        const StepStats s = train_step(rank, batch, {.adamw = {.lr = 3e-3, .step = i}, .clip = 1});
        if (rank.world->rank() == 0) losses[streamed].push_back(s.loss), losses[streamed].push_back(s.grad_norm);
      }
    });
  }
  EXPECT_EQ(losses[0], losses[1]);
}

// A rank that fails in the middle of a step, while the other waits for it on the GPU, ends both, with its own cause.
TEST(CudaRuns, AFailingRankEndsTheOthers) {
  if (cuda_device_count() < 2) GTEST_SKIP() << "needs two GPUs";
  Case c{.ranks = 2, .per_stage = 2, .query = 4};
  c.target = Backend::kCuda;
  const untied::Run run = make_run(c.layout(), c.model(), weights());
  for (int failing : {0, 1}) {
    const auto start = std::chrono::steady_clock::now();
    try {
      on_each_rank(run, [&](RankState& rank) {
        for (int step = 1;; ++step) {
          StepOptions options{.adamw = {.lr = 1e-3, .step = step}};
          options.between_blocks = [&] {
            if (step == 3 && rank.world->rank() == failing) throw RunError("a fault for the test");
          };
          train_step(rank, c.batch(), options);
        }
      });
      FAIL() << "it ended well";
    } catch (const std::exception& error) {
      EXPECT_STREQ(error.what(), "a fault for the test");
    }
    EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(20));
  }
}

INSTANTIATE_TEST_SUITE_P(Types, CudaLayouts, testing::Values(DType::kF32, DType::kBF16),
                         [](const auto& info) { return std::string(name_of(info.param)); });

}  // namespace
}  // namespace untied

#endif
