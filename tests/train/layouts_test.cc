// Every layout computes what one rank computes: the loss, the norm, and every parameter's gradient. And what a layout plans is
// what it uses, to the byte.
#include <gtest/gtest.h>

#include <cmath>

#include "support/small_model.h"
#include "train/local_ranks.h"

namespace untied {
namespace {

constexpr double kLoss = 1e-5, kGradient = 1e-4;  // the contract's; fp32 sums in another order give about 1e-6

struct Case {
  dim_t heads = 4, kv_heads = 2;
  int ranks = 1, per_stage = 4;
  dim_t query = 1000, mlp = 1000, loss = 1000;  // clipped to the rank's rows
  SavePolicy save = SavePolicy::kAttention;
  Tier store = Tier::kDevice;
  MemoryKind optimizer = MemoryKind::kDevice;
  dim_t context = 33;
  std::vector<dim_t> documents = {33};
  int accumulate = 1;
  bool tied = false, bias = false;
  int threads = 1;
  dim_t blocks = 2;

  std::string str() const {
    std::string text =
        format("H {} K {} ranks {} U {} tiles {}/{}/{} {} {} {} S {} accumulate {}{}{} documents", heads, kv_heads,
               ranks, per_stage, query, mlp, loss, save == SavePolicy::kRecompute ? "recompute" : "attention",
               store == Tier::kHost ? "host" : "device", optimizer == MemoryKind::kHost ? "opt-host" : "opt-device",
               context, accumulate, tied ? " tied" : "", bias ? " bias" : "");
    for (dim_t d : documents) text += format(" {}", d);
    return text;
  }
  Layout layout() const {
    const dim_t T = ceil_div(context, ranks);
    return {.ranks = ranks,
            .ulysses = ranks,
            .heads_per_stage = per_stage,
            .context = context,
            .tokens = T,
            .tiles = {std::min(query, T), std::min(mlp, T), std::min(loss, T)},
            .save = save,
            .store = store,
            .optimizer = optimizer,
            .accumulate = accumulate,
            .threads = threads};
  }
  ModelConfig model() const {
    ModelConfig model = small_model(heads, kv_heads, tied, bias);
    model.blocks = blocks;
    return model;
  }
  std::vector<std::shared_ptr<const Sequence>> batch() const {
    std::vector<std::shared_ptr<const Sequence>> sequences;
    for (int i = 0; i < accumulate; ++i) sequences.push_back(make_sequence(context, documents, 61, 17 + i));
    return sequences;
  }
};

constexpr auto kRecompute = SavePolicy::kRecompute;
constexpr auto kHost = Tier::kHost;
constexpr auto kHostState = MemoryKind::kHost;

std::vector<Case> table() {
  std::vector<Case> list;
  // Ranks and stages, with K < P, K = P, K > P, and heads that P does not divide.
  for (int ranks : {1, 2, 3, 4, 8})
    for (int u : {1, 2, 4}) list.push_back({.ranks = ranks, .per_stage = u, .query = 4});
  for (auto [h, k, u] : {std::tuple{8, 4, 1},
                         {8, 4, 2},
                         {8, 2, 1},
                         {8, 2, 2},
                         {16, 8, 4},
                         {12, 4, 2},
                         {14, 2, 7},
                         {28, 4, 8},
                         {9, 3, 4},
                         {5, 1, 3}})
    for (int ranks : {2, 4, 8}) list.push_back({.heads = h, .kv_heads = k, .ranks = ranks, .per_stage = u, .query = 3});
  // Tiles that divide nothing; one row; all rows.
  for (dim_t tile : {1, 2, 3, 5, 8, 33})
    list.push_back({.ranks = 2, .per_stage = 2, .query = tile, .mlp = tile + 1, .loss = tile + 2, .store = kHost});
  // Policies, stores, state, accumulation.
  for (SavePolicy save : {SavePolicy::kAttention, kRecompute})
    for (Tier store : {Tier::kDevice, kHost})
      for (MemoryKind state : {MemoryKind::kDevice, kHostState})
        for (int accumulate : {1, 3})
          list.push_back({.ranks = 4,
                          .per_stage = 2,
                          .query = 4,
                          .mlp = 5,
                          .loss = 3,
                          .save = save,
                          .store = store,
                          .optimizer = state,
                          .accumulate = accumulate});
  // Lengths that nothing divides, fewer tokens than ranks.
  for (dim_t s : {1, 2, 7, 15, 16, 17, 31, 33})
    for (int ranks : {2, 4})
      list.push_back(
          {.ranks = ranks, .per_stage = 2, .query = 3, .store = kHost, .context = s + 1, .documents = {s + 1}});
  // Packed documents, borders at shard edges, padding.
  for (int ranks : {1, 2, 3, 4, 8})
    for (int u : {1, 4})
      list.push_back({.ranks = ranks,
                      .per_stage = u,
                      .query = 3,
                      .mlp = 4,
                      .save = kRecompute,
                      .store = kHost,
                      .context = 19,
                      .documents = {3, 1, 7, 2, 3}});
  list.push_back({.ranks = 4, .per_stage = 2, .query = 2, .context = 16, .documents = {4, 4, 4, 4}, .accumulate = 2});
  // Tied heads, biases, threads inside a rank.
  list.push_back({.ranks = 2, .per_stage = 2, .query = 5, .optimizer = kHostState, .accumulate = 2, .tied = true});
  list.push_back({.ranks = 3, .per_stage = 4, .query = 5, .store = kHost, .bias = true});
  list.push_back({.ranks = 2, .per_stage = 1, .query = 5, .tied = true, .bias = true, .threads = 2});
  // Many blocks and many tiles: the plan leaves out those that repeat.
  for (Tier store : {Tier::kDevice, kHost})
    for (int accumulate : {1, 2})
      list.push_back({.ranks = 2,
                      .per_stage = 2,
                      .query = 2,
                      .mlp = 3,
                      .loss = 2,
                      .save = kRecompute,
                      .store = store,
                      .optimizer = kHostState,
                      .context = 41,
                      .documents = {41},
                      .accumulate = accumulate,
                      .tied = true,
                      .blocks = 9});
  list.push_back({.per_stage = 2, .query = 2, .mlp = 3, .loss = 2, .store = kHost, .blocks = 8});
  return list;
}

Case random_case(std::mt19937& random) {
  auto pick = [&](auto... options) {
    const std::common_type_t<decltype(options)...> list[] = {options...};
    return list[random() % sizeof...(options)];
  };
  Case c;
  c.kv_heads = pick(1, 2, 3, 4);
  c.heads = c.kv_heads * pick(1, 2, 3);
  c.ranks = pick(1, 2, 3, 4, 5, 8);
  c.per_stage = 1 + static_cast<int>(random() % c.heads);
  c.context = 2 + static_cast<dim_t>(random() % 50);
  c.documents.clear();
  for (dim_t left = c.context - static_cast<dim_t>(random() % 3); left > 0;) {
    const dim_t length = std::min<dim_t>(left, 2 + random() % 30);
    c.documents.push_back(length);
    left -= length;
  }
  c.query = 1 + random() % 20;
  c.mlp = 1 + random() % 20;
  c.loss = 1 + random() % 20;
  c.save = pick(SavePolicy::kAttention, kRecompute);
  c.store = pick(Tier::kDevice, kHost);
  c.optimizer = pick(MemoryKind::kDevice, kHostState);
  c.accumulate = pick(1, 2);
  c.tied = random() % 2;
  c.bias = random() % 2;
  c.threads = pick(1, 2);
  return c;
}

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

// The traced program of the plan, for real: load, two steps, an evaluation, a save, a step.
void expect_plan_is_run(const Case& c) {
  SCOPED_TRACE(c.str());
  const auto batch = c.batch();
  if (batch[0]->valid_targets == 0) return;
  const untied::Run run = make_run(c.layout(), c.model(), random_source(3, 0.2));
  std::vector<dim_t> device(c.ranks), host(c.ranks);
  run_local_ranks(c.ranks, [&](std::shared_ptr<Communicator> world) {
    const int me = world->rank();
    const auto rank = start_rank(run, std::move(world));
    auto step = [&](dim_t n) { train_step(*rank, batch, {.adamw = {.lr = 1e-3, .step = n}, .clip = 1}); };
    step(1);
    step(2);
    evaluate(*rank, batch[0].get());
    save_weights(*rank, nullptr);
    step(3);
    device[me] = rank->ctx().memory.peak();
    host[me] = rank->ctx().host.peak();
  });
  EXPECT_EQ(device, run.device_bytes);
  EXPECT_EQ(host, run.host_bytes);
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
    run_local_ranks(c.ranks, [&](std::shared_ptr<Communicator> world) {
      const bool first = world->rank() == 0;
      const auto rank = start_rank(run, std::move(world));
      for (int i = 1; i <= 20; ++i) {
        const std::vector<std::shared_ptr<const Sequence>> batch{make_sequence(33, {20, 13}, 61, 100 + i)};
        const StepStats s = train_step(*rank, batch, {.adamw = {.lr = 3e-3, .step = i}, .clip = 1});
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
    run_local_ranks(2, [&](std::shared_ptr<Communicator> world) {
      const bool first = world->rank() == 0;
      const auto rank = start_rank(run, std::move(world));
      for (int step = 1; step <= 3; ++step) {
        StepOptions options{.adamw = {.lr = 1e-2, .step = step}};
        if (step == 2 && abandon_at > 0) {
          StepOptions given_up = options;
          given_up.between_blocks = [&, boundary = 0]() mutable {
            if (++boundary == abandon_at) throw StepAbandoned();
          };
          EXPECT_THROW(train_step(*rank, c.batch(), given_up), StepAbandoned);
        }
        const StepStats s = train_step(*rank, c.batch(), options);
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
  EXPECT_THROW(run_local_ranks(2,
                               [&](std::shared_ptr<Communicator> world) {
                                 const auto rank = start_rank(run, std::move(world));
                                 train_step(*rank, c.batch(), {.adamw = {.lr = 1}});
                               }),
               NotFiniteError);
}

}  // namespace
}  // namespace untied
