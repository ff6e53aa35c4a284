#include "parallel/schedule.h"

#include <algorithm>
#include <numeric>

#include "base/error.h"

namespace untied {
namespace {

struct Assignment {
  dim_t head;
  int rank, stage;
};

// Heads in working order: by stage, then rank, then head. Left-over heads go to the first ranks, so that any U turns in a row
// ask the same of every rank, but for one head.
std::vector<Assignment> assign(dim_t heads, int ranks, int per_stage) {
  auto first = [&](dim_t rank) { return rank * (heads / ranks) + std::min(rank, heads % ranks); };
  std::vector<Assignment> turns;  // one head from each rank in turn
  for (dim_t turn = 0; static_cast<dim_t>(turns.size()) < heads; ++turn)
    for (int rank = 0; rank < ranks; ++rank)
      if (first(rank) + turn < first(rank + 1)) turns.push_back({first(rank) + turn, rank, 0});
  for (std::size_t i = 0; i < turns.size(); ++i) turns[i].stage = static_cast<int>(i) / per_stage;
  std::stable_sort(turns.begin(), turns.end(), [](const Assignment& a, const Assignment& b) {
    return a.stage != b.stage ? a.stage < b.stage : a.rank < b.rank;
  });
  return turns;
}

// Follows one rank through the stages: which key/value heads come, which slot they take, when they leave.
void place_key_values(std::vector<Stage>& stages, int rank, const std::vector<dim_t>& kv_of_head, int& kv_slots) {
  std::vector<int> last_stage_of(1 + *std::max_element(kv_of_head.begin(), kv_of_head.end()), -1);
  for (int s = 0; s < static_cast<int>(stages.size()); ++s)
    for (dim_t q = stages[s].ranks[rank].heads.begin; q < stages[s].ranks[rank].heads.end; ++q)
      last_stage_of[kv_of_head[q]] = s;

  std::vector<dim_t> slots;  // the canonical key/value head in each, -1 when free
  for (int s = 0; s < static_cast<int>(stages.size()); ++s) {
    RankStage& mine = stages[s].ranks[rank];
    for (dim_t q = mine.heads.begin; q < mine.heads.end; ++q) {
      const dim_t kv = kv_of_head[q];
      auto slot = std::find(slots.begin(), slots.end(), kv);
      if (slot == slots.end()) {
        slot = std::find(slots.begin(), slots.end(), -1);
        if (slot == slots.end()) slot = slots.insert(slots.end(), -1);
        *slot = kv;
        mine.arrivals.push_back({static_cast<int>(kv), static_cast<int>(slot - slots.begin())});
      }
      mine.slot_of_head.push_back(static_cast<int>(slot - slots.begin()));
    }
    for (std::size_t i = 0; i < slots.size(); ++i)
      if (slots[i] >= 0 && last_stage_of[slots[i]] == s) {
        mine.departures.push_back({static_cast<int>(slots[i]), static_cast<int>(i)});
        slots[i] = -1;
      }
  }
  kv_slots = std::max(kv_slots, static_cast<int>(slots.size()));
}

KeyValueExchange collect(const Stage& stage, std::vector<KeyValueMove> RankStage::*moves) {
  KeyValueExchange exchange;
  std::vector<int> heads;
  for (const RankStage& rank : stage.ranks)
    for (const KeyValueMove& move : rank.*moves) heads.push_back(move.head);
  std::vector<int> distinct = heads;
  std::sort(distinct.begin(), distinct.end());
  distinct.erase(std::unique(distinct.begin(), distinct.end()), distinct.end());
  exchange.distinct = static_cast<int>(distinct.size());
  for (int head : distinct) {
    if (!exchange.runs.empty() && exchange.runs.back().end == head) ++exchange.runs.back().end;
    else exchange.runs.push_back({head, head + 1});
  }
  for (int head : heads)
    exchange.source.push_back(
        static_cast<int>(std::lower_bound(distinct.begin(), distinct.end(), head) - distinct.begin()));
  exchange.first_piece.push_back(0);
  for (const RankStage& rank : stage.ranks) {
    const int count = static_cast<int>((rank.*moves).size());
    exchange.first_piece.push_back(exchange.first_piece.back() + count);
    exchange.rounds = std::max(exchange.rounds, count);
  }
  return exchange;
}

}  // namespace

HeadSchedule make_head_schedule(dim_t heads, dim_t kv_heads, int ranks, int heads_per_stage) {
  CHECK(heads >= 1 && kv_heads >= 1 && heads % kv_heads == 0 && ranks >= 1, "{} heads, {} key/value heads, {} ranks",
        heads, kv_heads, ranks);
  if (heads_per_stage < 1 || heads_per_stage > heads)
    throw ConfigError("--heads-per-stage {}: the model has {} query heads, so 1 to {} are legal", heads_per_stage,
                      heads, heads);

  HeadSchedule schedule;
  schedule.heads = heads;
  schedule.kv_heads = kv_heads;
  schedule.ranks = ranks;

  std::vector<dim_t> kv_of_head;  // by working position; canonical key/value head
  for (const Assignment& a : assign(heads, ranks, heads_per_stage)) {
    const dim_t position = static_cast<dim_t>(schedule.query_order.size());
    if (a.stage == static_cast<int>(schedule.stages.size()))
      schedule.stages.push_back({{position, position}, std::vector<RankStage>(ranks), {}, {}});
    Stage& stage = schedule.stages.back();
    Range& mine = stage.ranks[a.rank].heads;
    if (mine.empty()) mine = {position, position};
    mine.end = stage.heads.end = position + 1;
    schedule.query_order.push_back(static_cast<int>(a.head));
    kv_of_head.push_back(a.head * kv_heads / heads);
  }
  // An idle rank's empty range sits where its heads would be.
  for (Stage& stage : schedule.stages) {
    dim_t next = stage.heads.begin;
    for (RankStage& rank : stage.ranks) {
      if (rank.heads.empty()) rank.heads = {next, next};
      next = rank.heads.end;
    }
  }
  for (int rank = 0; rank < ranks; ++rank) place_key_values(schedule.stages, rank, kv_of_head, schedule.kv_slots);

  // Working order of key/value heads: by first arrival, so that a stage's heads are neighbours.
  std::vector<int> position_of(kv_heads, -1);
  for (const Stage& stage : schedule.stages) {
    std::vector<int> coming;
    for (const RankStage& rank : stage.ranks)
      for (const KeyValueMove& move : rank.arrivals)
        if (position_of[move.head] < 0) coming.push_back(move.head), position_of[move.head] = 0;
    std::sort(coming.begin(), coming.end());
    for (int head : coming) {
      position_of[head] = static_cast<int>(schedule.kv_order.size());
      schedule.kv_order.push_back(head);
    }
  }
  for (Stage& stage : schedule.stages) {
    for (RankStage& rank : stage.ranks) {
      for (KeyValueMove& move : rank.arrivals) move.head = position_of[move.head];
      for (KeyValueMove& move : rank.departures) move.head = position_of[move.head];
    }
    stage.arrivals = collect(stage, &RankStage::arrivals);
    stage.departures = collect(stage, &RankStage::departures);
  }
  return schedule;
}

std::vector<QueryBlock> query_blocks(int ranks, dim_t tokens, Range rows) {
  std::vector<QueryBlock> blocks;
  for (int p = 0; p < ranks; ++p) blocks.push_back({p, {p * tokens + rows.begin, p * tokens + rows.end}});
  return blocks;
}

}  // namespace untied
