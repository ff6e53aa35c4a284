// What `auto` stands for in a layout.
#include "train/layout.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "parallel/schedule.h"
#include "support/small_model.h"

namespace untied {
namespace {

constexpr dim_t kLong = dim_t{1} << 20;

Layout automatic(dim_t heads, dim_t kv_heads, int ranks, dim_t context, dim_t head_dim = 128) {
  ModelConfig model = small_model(heads, kv_heads);
  model.head_dim = head_dim;
  model.hidden = heads * 128;
  RunConfig config;
  config.context = context;
  config.ranks = ranks;
  return resolve_layout(config, model, Backend::kCuda);
}

TEST(AutomaticLayout, AtShortContextOneStageHasAllHeads) {
  for (int ranks : {1, 2, 8}) EXPECT_EQ(automatic(32, 8, ranks, 65536).heads_per_stage, 32);
  EXPECT_EQ(automatic(32, 8, 1, 65537).heads_per_stage, 4);
}

TEST(AutomaticLayout, QueryHeadsOfOneKeyValueHeadStayTogetherWhileTheirTilesAreSmall) {
  struct Case {
    dim_t heads, kv_heads;
    int ranks, per_stage;
  };
  for (const Case& c : {Case{32, 8, 1, 4}, Case{32, 8, 2, 8}, Case{32, 32, 4, 4},
                        Case{32, 8, 4, 8},    // sixteen heads would be half of the hidden size: a quarter is legal
                        Case{32, 8, 8, 8},    // one a rank
                        Case{32, 8, 16, 16},  // one a rank, whatever that takes
                        Case{64, 8, 1, 8}, Case{64, 8, 2, 16}, Case{32, 1, 1, 8}, Case{28, 4, 1, 7}, Case{4, 1, 8, 4}})
    EXPECT_EQ(automatic(c.heads, c.kv_heads, c.ranks, kLong).heads_per_stage, c.per_stage)
        << c.heads << " heads, " << c.kv_heads << " key/value heads, " << c.ranks << " ranks";
  EXPECT_EQ(automatic(32, 8, 4, kLong, 64).heads_per_stage, 16);
}

// Two ranks have 24 of 48 heads each, the borders of groups of 16 inside them: 16 a rank would at times need two key/value heads,
// 8 never do.
TEST(AutomaticLayout, ADivisorOfTheGroupWhereMoreHeadsWouldNeedMoreBuffers) {
  EXPECT_EQ(automatic(48, 3, 2, kLong, 16).heads_per_stage, 16);
}

TEST(AutomaticLayout, NeedsNoMoreKeyValueBuffersThanOneHeadARank) {
  for (dim_t heads : {4, 6, 12, 14, 28, 32})
    for (dim_t kv_heads = 1; kv_heads <= heads; ++kv_heads)
      if (heads % kv_heads == 0)
        for (int ranks = 1; ranks <= 9; ++ranks) {
          auto slots = [&](int per_stage) { return make_head_schedule(heads, kv_heads, ranks, per_stage).kv_slots; };
          EXPECT_EQ(slots(automatic(heads, kv_heads, ranks, kLong, 8).heads_per_stage),
                    slots(static_cast<int>(std::min<dim_t>(ranks, heads))))
              << heads << " heads, " << kv_heads << " key/value heads, " << ranks << " ranks";
        }
}

}  // namespace
}  // namespace untied
