// Layouts that tests of whole steps walk: a table, and random ones.
#pragma once

#include <random>

#include "support/small_model.h"

namespace untied::layouts {

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
  Backend target = Backend::kCpu;
  DType dtype = DType::kF32;

  std::string str() const {
    std::string text = format("{} {} ", name_of(target), name_of(dtype));
    text += format("H {} K {} ranks {} U {} tiles {}/{}/{} {} {} {} S {} accumulate {}{}{} documents", heads, kv_heads,
                   ranks, per_stage, query, mlp, loss, save == SavePolicy::kRecompute ? "recompute" : "attention",
                   store == Tier::kHost ? "host" : "device", optimizer == MemoryKind::kHost ? "opt-host" : "opt-device",
                   context, accumulate, tied ? " tied" : "", bias ? " bias" : "");
    for (dim_t d : documents) text += format(" {}", d);
    return text;
  }
  Layout layout() const {
    const dim_t T = ceil_div(context, ranks);
    return {.target = target,
            .dtype = dtype,
            .ranks = ranks,
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

inline constexpr auto kRecompute = SavePolicy::kRecompute;
inline constexpr auto kHost = Tier::kHost;
inline constexpr auto kHostState = MemoryKind::kHost;

inline std::vector<Case> table() {
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

inline Case random_case(std::mt19937& random) {
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

// The program that a plan traces, behind the loading: two steps, an evaluation, a save, a step.
inline void run_planned_program(RankState& rank, std::span<const std::shared_ptr<const Sequence>> batch) {
  const auto step = [&](dim_t n) { train_step(rank, batch, {.adamw = {.lr = 1e-3, .step = n}, .clip = 1}); };
  step(1), step(2);
  evaluate(rank, batch[0].get());
  save_weights(rank, nullptr);
  step(3);
}

}  // namespace untied::layouts
