#include "memory/tiles.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <vector>

#include "device/cpu.h"
#include "memory/store.h"

namespace untied {
namespace {

// What a plan knows after a program has run.
struct Planned {
  dim_t device_peak, host_peak;
  Usage at_peak;
  std::uint64_t memory;  // signature
  Trace trace;
  int tiles;  // bodies that ran
};

using Program = std::function<void(Ctx&, int& tiles)>;

Planned plan(const Program& program, bool every_tile) {
  RankMemory rank(make_meta_device(Backend::kCuda, 1), -1, -1);
  Ctx& ctx = rank.ctx();
  ctx.every_tile = every_tile;
  int tiles = 0;
  program(ctx, tiles);
  return {ctx.memory.peak(),
          ctx.host.peak(),
          ctx.memory.usage_at_peak(),
          ctx.memory.signature() ^ ctx.host.signature(),
          ctx.trace,
          tiles};
}

// Jumping must tell the same as running every tile; returns how many tiles the jumping run took.
int expect_same_plan(const Program& program) {
  const Planned jumped = plan(program, false), full = plan(program, true);
  EXPECT_EQ(jumped.device_peak, full.device_peak);
  EXPECT_EQ(jumped.host_peak, full.host_peak);
  EXPECT_EQ(jumped.at_peak.bytes, full.at_peak.bytes);
  EXPECT_EQ(jumped.memory, full.memory);
  EXPECT_DOUBLE_EQ(jumped.trace.flops, full.trace.flops);
  EXPECT_DOUBLE_EQ(jumped.trace.bytes_moved, full.trace.bytes_moved);
  EXPECT_DOUBLE_EQ(jumped.trace.bytes_sent, full.trace.bytes_sent);
  EXPECT_DOUBLE_EQ(jumped.trace.bytes_copied, full.trace.bytes_copied);
  EXPECT_EQ(jumped.trace.ops, full.trace.ops);
  EXPECT_LE(jumped.tiles, full.tiles + 5);
  return jumped.tiles;
}

Buffer take(Ctx& ctx, dim_t bytes) { return ctx.memory.take("tile", Category::kTiles, bytes); }

TEST(TileLoop, CoversTheRowsInOrder) {
  RankMemory rank(make_cpu_device({}), 4096, 4096);
  for (dim_t rows : {0, 1, 7, 8, 9, 1000})
    for (dim_t size : {1, 3, 8, 5000}) {
      dim_t end = 0, index = 0;
      Range expected_next;
      for (const Tile tile : TileLoop(rank.ctx(), rows, size)) {
        EXPECT_EQ(tile.index, index++);
        EXPECT_EQ(tile.rows.begin, end);
        EXPECT_TRUE(tile.size() == size || tile.rows.end == rows);
        EXPECT_TRUE(tile.index == 0 || tile.rows == expected_next);
        expected_next = tile.next;
        end = tile.rows.end;
      }
      EXPECT_EQ(end, rows);
      EXPECT_TRUE(expected_next.empty());
    }
  EXPECT_EQ(TileLoop(rank.ctx(), 10, 4).first().rows, (Range{0, 4}));
  EXPECT_THROW(TileLoop(rank.ctx(), 10, 0), InternalError);
}

TEST(TileLoop, ARealDeviceRunsEveryTile) {
  RankMemory rank(make_cpu_device({}), 4096, 4096);
  int tiles = 0;
  for (const Tile tile : TileLoop(rank.ctx(), 1000, 1)) tiles += tile.size() == 1;
  EXPECT_EQ(tiles, 1000);
}

TEST(TileLoop, JumpsOverEqualTiles) {
  for (dim_t rows : {1, 2, 5, 6, 7, 8, 9, 10, 64, 65, 1000, 999})
    for (dim_t size : {1, 2, 7}) {
      const int ran = expect_same_plan([=](Ctx& ctx, int& tiles) {
        for (const Tile tile : TileLoop(ctx, rows, size)) {
          Buffer a = take(ctx, tile.size() * 300), b = take(ctx, tile.next.size() * 100 + 50);
          a.release();
          Buffer c = take(ctx, tile.size() * 700);
          ctx.trace.flops += static_cast<double>(tile.size() * 3);
          ctx.trace.bytes_sent += 5, ctx.trace.bytes_moved += 7, ++ctx.trace.ops;
          ++tiles;
        }
      });
      EXPECT_LE(ran, 8) << rows << " rows in tiles of " << size;
    }
}

// Prefetching one tile ahead: two stagings swap roles from tile to tile, and the loop leaves them where a full run would.
TEST(TileLoop, JumpsOverDoubleBuffers) {
  for (dim_t rows : {1, 2, 3, 12, 13, 14, 15, 16, 101, 1000, 1003})
    for (dim_t odd_one : {300, 5000}) {
      const int ran = expect_same_plan([=](Ctx& ctx, int& tiles) {
        SavedTensor saved(ctx, Tier::kHost, "x", 1, DType::kF32, rows, 100);
        TileLoop loop(ctx, rows, 1);
        Fetched now, next = saved.fetch(ctx, 0, {loop.first().rows, {0, 100}});
        for (const Tile tile : loop) {
          now = std::move(next);
          Buffer between = take(ctx, odd_one);  // fits only behind the second staging
          if (!tile.next.empty()) next = saved.fetch(ctx, 0, {tile.next, {0, 100}});
          now.tensor(ctx);
          ++tiles;
        }
      });
      EXPECT_LE(ran, 16);
    }
}

// Work that grows with the row: causal attention.
TEST(TileLoop, CountsWorkThatGrows) {
  for (dim_t rows : {7, 100, 1001, 4096}) {
    const int ran = expect_same_plan([=](Ctx& ctx, int& tiles) {
      for (const Tile tile : TileLoop(ctx, rows, 4)) {
        Buffer a = take(ctx, 100);
        ctx.trace.flops += static_cast<double>(tile.size() * tile.rows.end);
        ctx.trace.bytes_moved += static_cast<double>(tile.rows.end);
        ++ctx.trace.ops;
        ++tiles;
      }
    });
    EXPECT_LE(ran, 8);
  }
}

// A first tile that writes where the others add.
TEST(TileLoop, AFirstTileThatDiffersIsNotGrowth) {
  const int ran = expect_same_plan([](Ctx& ctx, int& tiles) {
    for (const Tile tile : TileLoop(ctx, 1000, 1)) {
      ctx.trace.bytes_moved += tile.index == 0 ? 10 : 15;
      ++tiles;
    }
  });
  EXPECT_LE(ran, 8);
}

// A window fills up: the growth ends. Where the loop lands shows it, so it goes back and runs every tile.
TEST(TileLoop, GrowthThatEndsIsNoticed) {
  for (dim_t window : {2, 3, 4, 50, 500, 998, 5000})
    expect_same_plan([=](Ctx& ctx, int& tiles) {
      for (const Tile tile : TileLoop(ctx, 1000, 1)) {
        Buffer a = take(ctx, 100);
        ctx.trace.flops += static_cast<double>(std::min(tile.rows.end, window));
        ++tiles;
      }
    });
}

TEST(TileLoop, NestedLoopsJumpTogether) {
  const int ran = expect_same_plan([](Ctx& ctx, int& tiles) {
    for (const Tile outer : TileLoop(ctx, 300, 2)) {
      Buffer a = take(ctx, outer.size() * 1000);
      for (const Tile inner : TileLoop(ctx, outer.rows.end, 3)) {
        Buffer b = take(ctx, inner.size() * 500);
        ctx.trace.flops += static_cast<double>(outer.size() * inner.size());
        ++tiles;
      }
    }
  });
  EXPECT_LE(ran, 2000);  // of 7,600; inner loops have remainders of their own, which do not grow evenly
}

// Memory that never looks as it did: nothing to jump over.
TEST(TileLoop, RunsEveryTileWhereMemoryGrows) {
  const int ran = expect_same_plan([](Ctx& ctx, int& tiles) {
    std::vector<Buffer> kept;
    for (const Tile tile : TileLoop(ctx, 100, 1)) {
      kept.push_back(take(ctx, tile.size()));
      ++tiles;
    }
  });
  EXPECT_EQ(ran, 100);
}

TEST(TileLoop, ATileThatChangesMemoryBehindTheJumpIsRefused) {
  RankMemory rank(make_meta_device(Backend::kCuda, 1), -1, -1);
  Ctx& ctx = rank.ctx();
  Buffer held = take(ctx, 1);
  auto loop = [&] {
    for (const Tile tile : TileLoop(ctx, 1000, 1))
      if (tile.index > 500) held.release();
  };
  EXPECT_THROW(loop(), InternalError);
}

// Ten million rows plan as fast as a thousand.
TEST(TileLoop, TakesNoLongerForMoreRows) {
  RankMemory rank(make_meta_device(Backend::kCuda, 1), -1, -1);
  Ctx& ctx = rank.ctx();
  int tiles = 0;
  for (const Tile tile : TileLoop(ctx, dim_t{10} << 20, 64)) {
    Buffer a = take(ctx, tile.size() * 8192);
    ctx.trace.flops += static_cast<double>(tile.size()) * static_cast<double>(tile.rows.end) * 1e6;
    ++tiles;
  }
  EXPECT_LE(tiles, 8);
  const double rows = static_cast<double>(dim_t{10} << 20);
  EXPECT_NEAR(ctx.trace.flops / (rows * (rows + 64) / 2 * 1e6), 1, 1e-12);
}

}  // namespace
}  // namespace untied
