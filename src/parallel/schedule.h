// The attention of one block as data: which rank attends which query heads in which stage, where key/value heads are, in which
// order weights keep their heads. A pure function of (H, K, P, U) and of the tiles; every context-parallel method of one node
// is a choice of these numbers (docs/algorithm.md). The executor (model/attention.h) only follows it.
//
// Letters: H query heads, K key/value heads, P Ulysses degree, U query heads of one stage over all ranks, T tokens of a rank.
#pragma once

#include <vector>

#include "base/size.h"

namespace untied {

// A key/value head that comes to, or leaves, a rank.
struct KeyValueMove {
  int head;  // working order
  int slot;  // which of the rank's key/value buffers
};

// One rank's part of a stage.
struct RankStage {
  Range heads;                           // its query heads, in working order
  std::vector<int> slot_of_head;         // the key/value buffer of each
  std::vector<KeyValueMove> arrivals;    // before the stage
  std::vector<KeyValueMove> departures;  // after the stage: no later stage of this rank needs them
};

// All ranks' moves of one stage, as the side that projects (or sums gradients) sees them. `pieces` lists them rank by rank.
struct KeyValueExchange {
  std::vector<Range> runs;       // the distinct heads, as runs of the working order
  int distinct = 0;              // heads in all runs
  std::vector<int> source;       // for each piece, its head's place among the distinct
  std::vector<int> first_piece;  // of each rank, P + 1 entries
  int rounds = 0;                // most pieces of any rank: one exchange moves one piece per rank
};

struct Stage {
  Range heads;  // of all ranks, in working order; rank by rank
  std::vector<RankStage> ranks;
  KeyValueExchange arrivals, departures;
};

struct HeadSchedule {
  dim_t heads = 0, kv_heads = 0;
  int ranks = 0;
  std::vector<int> query_order;  // working position -> canonical head
  std::vector<int> kv_order;
  std::vector<Stage> stages;
  int kv_slots = 0;  // key/value buffers a rank needs, the most of any rank
};

// Rank p attends a contiguous range of canonical heads, so it needs the fewest key/value heads there can be; a stage takes U
// heads, one from each rank in turn. Stages that share a key/value head follow each other, so it crosses the wire once.
// Any 1 <= U <= H, K dividing H, any P >= 1. Throws ConfigError naming the option otherwise.
HeadSchedule make_head_schedule(dim_t heads, dim_t kv_heads, int ranks, int heads_per_stage);

// Tokens are sharded in order: rank p holds rows [pT, (p+1)T). The exchange of rows [a, b) of every shard brings P blocks of
// query rows to each rank; block p is rows [pT + a, pT + b) of the sequence and attends keys [0, pT + b).
struct QueryBlock {
  int source;  // the rank whose tokens they are
  Range rows;  // of the sequence
};
std::vector<QueryBlock> query_blocks(int ranks, dim_t tokens, Range rows);

}  // namespace untied
