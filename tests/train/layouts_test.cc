// Every layout computes what one rank computes: the loss, the norm, and every parameter's gradient. And what a layout plans is
// what it uses, to the byte.
#include <gtest/gtest.h>

#include <cmath>

#include "support/layout_cases.h"

namespace untied {
namespace {

constexpr double kLoss = 1e-5, kGradient = 1e-4;  // the contract's; fp32 sums in another order give about 1e-6

using layouts::Case, layouts::kHost, layouts::kHostState, layouts::random_case, layouts::table;

void expect_equal_to_one_rank(const Case& c) {
  SCOPED_TRACE(c.str());
  const auto batch = c.batch();
  dim_t valid = 0;
  for (const auto& s : batch) valid += s->valid_targets;
  if (valid == 0) return;  // such a step is never run
  const auto weights = [] { return random_source(3, 0.2); };
  const Probe reference =
      probe_step(make_run(single_rank(c.context, c.model(), c.accumulate), c.model(), weights()), batch);
  const untied::Run run = make_run(c.layout(), c.model(), weights());
  const Probe probe = probe_step(run, batch);
  ASSERT_TRUE(std::isfinite(reference.loss) && reference.loss > 0.1);
  EXPECT_NEAR(probe.loss / reference.loss, 1, kLoss);
  EXPECT_NEAR(probe.grad_norm / reference.grad_norm, 1, kGradient);
  const Difference worst = worst_difference(probe, reference);
  EXPECT_LE(worst.worst, kGradient) << worst.parameter;
}

TEST(Layouts, TableEqualsOneRank) {
  ASSERT_GE(table().size(), 40u);
  for (const Case& c : table()) expect_equal_to_one_rank(c);
}

TEST(Layouts, RandomOnesEqualOneRank) {
  std::mt19937 random(20261129);
  for (int i = 0; i < 40; ++i) expect_equal_to_one_rank(random_case(random));
}

// The traced program of the plan, for real: load, two steps, an evaluation, a save, a step. Behind a step whose gradients are
// collected, as `verify` does in the same memory.
void expect_plan_is_run(const Case& c) {
  SCOPED_TRACE(c.str());
  const auto batch = c.batch();
  if (batch[0]->valid_targets == 0) return;
  const untied::Run run = make_run(c.layout(), c.model(), random_source(3, 0.2));
  const Probe probe = probe_step(run, batch, [&](RankState& rank) { layouts::run_planned_program(rank, batch); });
  EXPECT_EQ(probe.device_peaks, run.device_bytes);
  EXPECT_EQ(probe.host_peaks, run.host_bytes);
}

TEST(Layouts, PlanIsTheRunToTheByte) {
  for (const Case& c : table()) expect_plan_is_run(c);
  std::mt19937 random(7);
  for (int i = 0; i < 20; ++i) expect_plan_is_run(random_case(random));
}

// Where things are kept must not change a bit: 20 steps with all on the device, and with everything streamed through the host.
TEST(Layouts, StreamingChangesNoBit) {
  std::vector<double> losses[2];
  for (int streamed : {0, 1}) {
    Case c{.ranks = 2, .per_stage = 2, .query = 4, .mlp = 5, .loss = 6};
    if (streamed) c.store = kHost, c.optimizer = kHostState;
    const untied::Run run = make_run(c.layout(), c.model(), random_source(3, 0.2));
    on_each_rank(run, [&](RankState& rank) {
      const bool first = rank.world->rank() == 0;
      for (int i = 1; i <= 20; ++i) {
        const std::vector<std::shared_ptr<const Sequence>> batch{make_sequence(33, {20, 13}, 61, 100 + i)};
        const StepStats s = train_step(rank, batch, {.adamw = {.lr = 3e-3, .step = i}, .clip = 1});
        if (first) losses[streamed].push_back(s.loss), losses[streamed].push_back(s.grad_norm);
      }
    });
  }
  EXPECT_EQ(losses[0], losses[1]);
}

// 64 equal micro-batches are one: sums are kept in fp32 and divided once.
TEST(Layouts, EqualMicroBatchesAreOne) {
  const Case one{.ranks = 2, .per_stage = 2};
  Case many = one;
  many.accumulate = 64;
  const std::vector<std::shared_ptr<const Sequence>> batch(64, one.batch()[0]);
  const Probe a = probe_step(make_run(one.layout(), one.model(), random_source(3, 0.2)), one.batch());
  const Probe b = probe_step(make_run(many.layout(), many.model(), random_source(3, 0.2)), batch);
  EXPECT_NEAR(b.loss / a.loss, 1, 1e-6);
  EXPECT_LE(worst_difference(b, a).worst, 1e-5);
}

// Labels that sit at shard borders, or all on one rank, count once: 8 tokens, 7 targets, on any number of ranks.
TEST(Layouts, EveryTargetCountsOnce) {
  auto sequence = std::make_shared<Sequence>();
  for (int i = 0; i < 8; ++i) {
    sequence->ids.push_back(5 + i);
    sequence->positions.push_back(i);
    sequence->targets.push_back(i < 7 ? 6 + i : kIgnored);
  }
  sequence->document_starts = {0};
  sequence->tokens = 8;
  sequence->valid_targets = 7;
  auto one_rank_only = std::make_shared<Sequence>(*sequence);
  for (int i = 2; i < 8; ++i) one_rank_only->targets[i] = kIgnored;
  one_rank_only->valid_targets = 2;
  for (std::shared_ptr<const Sequence> s :
       {std::shared_ptr<const Sequence>(sequence), std::shared_ptr<const Sequence>(one_rank_only)}) {
    const std::vector<std::shared_ptr<const Sequence>> batch{s};
    Case c{.context = 8};
    const Probe reference = probe_step(make_run(single_rank(8, c.model()), c.model(), random_source(3, 0.2)), batch);
    for (int ranks : {1, 2, 4, 8}) {
      c.ranks = ranks;
      const Probe probe = probe_step(make_run(c.layout(), c.model(), random_source(3, 0.2)), batch);
      EXPECT_NEAR(probe.loss / reference.loss, 1, kLoss) << ranks;
      EXPECT_LE(worst_difference(probe, reference).worst, kGradient) << ranks;
    }
  }
}

// What happens in one document reaches no other: change the first, and the others' gradients of the loss stay bit for bit.
TEST(Layouts, DocumentsDoNotLeak) {
  for (int ranks : {1, 2, 4}) {
    Case c{.ranks = ranks, .per_stage = 2, .query = 3, .context = 16, .documents = {3, 1, 7, 2, 3}};
    auto a = std::make_shared<Sequence>(*make_sequence(16, c.documents, 61, 5));
    for (int i = 0; i < 3; ++i) a->targets[i] = kIgnored;  // the first document has no loss of its own
    a->valid_targets = 0;
    for (int t : a->targets) a->valid_targets += t != kIgnored;
    auto b = std::make_shared<Sequence>(*a);
    for (int i = 0; i < 3; ++i) b->ids[i] = 60 - b->ids[i];
    auto loss_of = [&](std::shared_ptr<const Sequence> s) {
      const std::vector<std::shared_ptr<const Sequence>> batch{s};
      return probe_step(make_run(c.layout(), c.model(), random_source(3, 0.2)), batch);
    };
    const Probe pa = loss_of(a), pb = loss_of(b);
    EXPECT_EQ(pa.loss, pb.loss) << ranks;
    EXPECT_EQ(pa.gradients.at("lm_head.weight"), pb.gradients.at("lm_head.weight")) << ranks;
    EXPECT_EQ(pa.gradients.at("model.layers.0.mlp.down_proj.weight"),
              pb.gradients.at("model.layers.0.mlp.down_proj.weight"))
        << ranks;
  }
}

// A step given up between two blocks leaves weights and state as they were, and the next step works.
TEST(Layouts, AnAbandonedStepChangesNothing) {
  const Case c{.ranks = 2, .per_stage = 2, .query = 4, .store = kHost, .optimizer = kHostState, .accumulate = 2};
  const untied::Run run = make_run(c.layout(), c.model(), random_source(3, 0.2));
  auto losses = [&](int abandon_at) {
    std::vector<double> all;
    on_each_rank(run, [&](RankState& rank) {
      const bool first = rank.world->rank() == 0;
      for (int step = 1; step <= 3; ++step) {
        StepOptions options{.adamw = {.lr = 1e-2, .step = step}};
        if (step == 2 && abandon_at > 0) {
          StepOptions given_up = options;
          given_up.between_blocks = [&, boundary = 0]() mutable {
            if (++boundary == abandon_at) throw StepAbandoned();
          };
          EXPECT_THROW(train_step(rank, c.batch(), given_up), StepAbandoned);
        }
        const StepStats s = train_step(rank, c.batch(), options);
        if (first) all.push_back(s.loss);
      }
    });
    return all;
  };
  const std::vector<double> undisturbed = losses(0);
  for (int boundary : {1, 2, 3, 4, 5, 8}) EXPECT_EQ(losses(boundary), undisturbed) << boundary;
}

TEST(Layouts, NotFiniteIsRefusedBeforeTheUpdate) {
  const Case c{.ranks = 2, .per_stage = 2};
  struct Poisoned final : WeightSource {
    void read(const Parameter& p, Range range, float* out) const override {
      for (dim_t i = 0; i < range.size(); ++i) out[i] = p.name == "model.norm.weight" ? NAN : 0.1f;
    }
  };
  const untied::Run run = make_run(c.layout(), c.model(), std::make_shared<Poisoned>());
  EXPECT_THROW(on_each_rank(run, [&](RankState& rank) { train_step(rank, c.batch(), {.adamw = {.lr = 1}}); }),
               NotFiniteError);
}

}  // namespace
}  // namespace untied
