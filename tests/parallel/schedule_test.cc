// The schedule as data, without any communication: heads are a permutation that keeps every group with its key/value head,
// and the tiles of all ranks cover the causal triangle exactly once.
#include "parallel/schedule.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>

#include "base/error.h"

namespace untied {
namespace {

struct Case {
  dim_t heads, kv_heads;
  int ranks, per_stage;
};
std::string name(const Case& c) { return format("H {} K {} P {} U {}", c.heads, c.kv_heads, c.ranks, c.per_stage); }

std::vector<Case> cases() {
  std::vector<Case> list;
  // (H, K) pairs that other trainers got wrong, on 1 to 8 ranks, any stage.
  for (auto [h, k] :
       {std::pair<dim_t, dim_t>{8, 4}, {8, 2}, {8, 8}, {16, 8}, {12, 4}, {14, 2}, {28, 4}, {9, 3}, {1, 1}, {5, 1}})
    for (int p : {1, 2, 3, 4, 5, 8})
      for (int u : {1, 2, 3, 4, 7, 8, static_cast<int>(h)})
        if (u <= h) list.push_back({h, k, p, u});
  std::mt19937 random(1);
  for (int i = 0; i < 300; ++i) {
    const dim_t k = 1 + random() % 9, h = k * (1 + random() % 9);
    list.push_back({h, k, 1 + static_cast<int>(random() % 17), 1 + static_cast<int>(random() % h)});
  }
  list.push_back({32, 8, 8, 8});
  list.push_back({64, 8, 16, 16});
  list.push_back({64, 8, 1024, 64});
  return list;
}

TEST(Schedule, HeadsAreAPermutationInBothOrders) {
  for (const Case& c : cases()) {
    const HeadSchedule s = make_head_schedule(c.heads, c.kv_heads, c.ranks, c.per_stage);
    EXPECT_EQ(std::set<int>(s.query_order.begin(), s.query_order.end()).size(), static_cast<std::size_t>(c.heads))
        << name(c);
    EXPECT_EQ(s.query_order.size(), static_cast<std::size_t>(c.heads)) << name(c);
    EXPECT_EQ(std::set<int>(s.kv_order.begin(), s.kv_order.end()).size(), static_cast<std::size_t>(c.kv_heads))
        << name(c);
    EXPECT_EQ(s.kv_order.size(), static_cast<std::size_t>(c.kv_heads)) << name(c);
  }
}

TEST(Schedule, StagesTakeUHeadsAndRanksAreBalanced) {
  for (const Case& c : cases()) {
    const HeadSchedule s = make_head_schedule(c.heads, c.kv_heads, c.ranks, c.per_stage);
    ASSERT_EQ(static_cast<dim_t>(s.stages.size()), ceil_div(c.heads, c.per_stage)) << name(c);
    std::vector<dim_t> of_rank(c.ranks, 0);
    dim_t next = 0;
    for (const Stage& stage : s.stages) {
      EXPECT_EQ(stage.heads.begin, next) << name(c);
      EXPECT_EQ(stage.heads.size(), std::min<dim_t>(c.per_stage, c.heads - next)) << name(c);
      for (int p = 0; p < c.ranks; ++p) {
        EXPECT_EQ(stage.ranks[p].heads.begin, next) << name(c);
        EXPECT_LE(stage.ranks[p].heads.size(), ceil_div(c.per_stage, c.ranks)) << name(c);
        next = stage.ranks[p].heads.end;
        of_rank[p] += stage.ranks[p].heads.size();
      }
      EXPECT_EQ(stage.heads.end, next) << name(c);
    }
    const auto [least, most] = std::minmax_element(of_rank.begin(), of_rank.end());
    EXPECT_LE(*most - *least, 1) << name(c);
  }
}

// Walks every rank through the stages with real buffers.
TEST(Schedule, EveryHeadMeetsItsOwnKeyValueHead) {
  for (const Case& c : cases()) {
    const HeadSchedule s = make_head_schedule(c.heads, c.kv_heads, c.ranks, c.per_stage);
    for (int p = 0; p < c.ranks; ++p) {
      std::vector<int> slots(s.kv_slots, -1);  // canonical key/value head in each buffer
      std::map<int, int> arrivals;
      for (const Stage& stage : s.stages) {
        for (const KeyValueMove& m : stage.ranks[p].arrivals) {
          ASSERT_EQ(slots.at(m.slot), -1) << name(c) << ": a buffer in use is overwritten";
          slots[m.slot] = s.kv_order[m.head];
          EXPECT_EQ(++arrivals[m.head], 1) << name(c) << ": a key/value head crosses the wire twice";
        }
        const RankStage& mine = stage.ranks[p];
        ASSERT_EQ(static_cast<dim_t>(mine.slot_of_head.size()), mine.heads.size());
        for (dim_t q = mine.heads.begin; q < mine.heads.end; ++q)
          EXPECT_EQ(slots.at(mine.slot_of_head[q - mine.heads.begin]), s.query_order[q] * c.kv_heads / c.heads)
              << name(c);
        for (const KeyValueMove& m : mine.departures) {
          EXPECT_EQ(slots.at(m.slot), s.kv_order[m.head]) << name(c);
          slots[m.slot] = -1;
        }
      }
      for (int slot : slots) EXPECT_EQ(slot, -1) << name(c) << ": gradients that never go home";
    }
  }
}

TEST(Schedule, ExchangesListEveryMoveOnce) {
  for (const Case& c : cases()) {
    const HeadSchedule s = make_head_schedule(c.heads, c.kv_heads, c.ranks, c.per_stage);
    for (const Stage& stage : s.stages) {
      auto check = [&](const KeyValueExchange& exchange, std::vector<KeyValueMove> RankStage::*moves) {
        std::vector<int> distinct;
        for (Range run : exchange.runs)
          for (dim_t head = run.begin; head < run.end; ++head) distinct.push_back(static_cast<int>(head));
        ASSERT_EQ(static_cast<int>(distinct.size()), exchange.distinct) << name(c);
        int piece = 0, rounds = 0;
        for (int p = 0; p < c.ranks; ++p) {
          EXPECT_EQ(exchange.first_piece[p], piece) << name(c);
          for (const KeyValueMove& m : stage.ranks[p].*moves)
            EXPECT_EQ(distinct.at(exchange.source.at(piece++)), m.head) << name(c);
          rounds = std::max(rounds, static_cast<int>((stage.ranks[p].*moves).size()));
        }
        EXPECT_EQ(static_cast<int>(exchange.source.size()), piece) << name(c);
        EXPECT_EQ(exchange.rounds, rounds) << name(c);
      };
      check(stage.arrivals, &RankStage::arrivals);
      check(stage.departures, &RankStage::departures);
    }
  }
}

// The published order: one head per rank and stage, key/value heads stay for their whole group.
TEST(Schedule, LlamaOnEightRanksBringsKeysAndValuesOnce) {
  const HeadSchedule s = make_head_schedule(32, 8, 8, 8);
  ASSERT_EQ(s.stages.size(), 4u);
  EXPECT_EQ(s.kv_slots, 1);
  EXPECT_EQ(s.stages[0].arrivals.distinct, 8);
  EXPECT_EQ(s.stages[0].arrivals.runs, (std::vector<Range>{{0, 8}}));
  for (int stage : {1, 2, 3}) EXPECT_EQ(s.stages[stage].arrivals.distinct, 0);
  EXPECT_EQ(s.stages[3].departures.distinct, 8);
  EXPECT_EQ((std::vector<int>(s.query_order.begin(), s.query_order.begin() + 8)),
            (std::vector<int>{0, 4, 8, 12, 16, 20, 24, 28}));
}

TEST(Schedule, FewerKeyValueHeadsThanRanksAreReplicated) {
  const HeadSchedule s = make_head_schedule(8, 2, 4, 4);
  EXPECT_EQ(s.stages[0].arrivals.distinct, 2);
  EXPECT_EQ(s.stages[0].arrivals.source, (std::vector<int>{0, 0, 1, 1}));
}

// All query rows of all ranks, heads and tiles: each (head, row) once, with the keys up to and with itself.
TEST(Schedule, TilesCoverTheCausalTriangleOnce) {
  std::mt19937 random(2);
  for (int i = 0; i < 300; ++i) {
    const dim_t k = 1 + random() % 4, h = k * (1 + random() % 4), S = 1 + random() % 40;
    const int ranks = 1 + random() % 6, u = 1 + random() % h;
    const dim_t T = ceil_div(S, ranks), tile = 1 + random() % T;
    const HeadSchedule s = make_head_schedule(h, k, ranks, u);
    std::map<std::pair<int, dim_t>, std::pair<int, dim_t>> seen;  // (head, row) -> (times, last key + 1)
    for (const Stage& stage : s.stages)
      for (int p = 0; p < ranks; ++p)
        for (dim_t begin = 0; begin < T; begin += tile)
          for (const QueryBlock& block : query_blocks(ranks, T, {begin, std::min(begin + tile, T)}))
            for (dim_t q = stage.ranks[p].heads.begin; q < stage.ranks[p].heads.end; ++q)
              for (dim_t row = block.rows.begin; row < block.rows.end; ++row) {
                auto& [times, keys] = seen[{s.query_order[q], row}];
                ++times;
                // The attention op lets row i of a block that starts at `first` attend keys [0, first + i].
                keys = block.rows.begin + (row - block.rows.begin) + 1;
                EXPECT_EQ(row / T, block.source);
              }
    ASSERT_EQ(static_cast<dim_t>(seen.size()), h * T * ranks);
    for (const auto& [at, what] : seen) {
      EXPECT_EQ(what.first, 1);
      EXPECT_EQ(what.second, at.second + 1);
    }
  }
}

TEST(Schedule, IllegalStagesAreRefusedByName) {
  for (int u : {0, -1, 9}) {
    try {
      make_head_schedule(8, 2, 2, u);
      FAIL() << u;
    } catch (const ConfigError& error) {
      EXPECT_NE(std::string(error.what()).find("--heads-per-stage"), std::string::npos);
      EXPECT_NE(std::string(error.what()).find("1 to 8"), std::string::npos);
    }
  }
}

}  // namespace
}  // namespace untied
