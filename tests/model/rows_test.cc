#include "model/rows.h"

#include <gtest/gtest.h>

#include <vector>

#include "base/error.h"
#include "device/cpu.h"

namespace untied {
namespace {

constexpr dim_t kRows = 5, kTile = 2, kColumns = 1;
constexpr dim_t kStaging = Arena::kAlignment;  // of a tile

// One column, row i holding i, in host memory. Copies are lazy: a tile that was not waited for shows.
struct RowsAheadTest : testing::Test {
  RankMemory memory{make_cpu_device({.lazy_copies = true}), 1 << 16, 1 << 16};
  Ctx& ctx = memory.ctx();
  SavedTensor saved{ctx, Tier::kHost, "x_in", 1, DType::kF32, kRows, kColumns};
  TileLoop tiles{ctx, kRows, kTile};

  void SetUp() override {
    Buffer source = ctx.memory.take("source", Category::kHidden, DType::kF32, {kRows, kColumns});
    const Tensor x = source.tensor(DType::kF32, {kRows, kColumns});
    for (dim_t i = 0; i < kRows; ++i) x.f32()[i] = static_cast<float>(i);
    saved.save(ctx, 0, {{0, kRows}, {0, kColumns}}, x, source);
  }
  dim_t staged() const { return ctx.memory.usage().bytes[static_cast<int>(Category::kStaging)] / kStaging; }
};

TEST_F(RowsAheadTest, EveryLoopSeesEveryRow) {
  RowsAhead ahead(ctx, RowSource(saved, 0), tiles.first(), 3);
  for (int loop = 0; loop < 3; ++loop)
    for (const Tile& tile : tiles) {
      const Tensor x = ahead.at(tile);
      ASSERT_EQ(x.dim(0), tile.size());
      for (dim_t i = 0; i < tile.size(); ++i)
        EXPECT_EQ(x.f32()[i * x.stride(0)], static_cast<float>(tile.rows.begin + i)) << "loop " << loop;
    }
}

// Two tiles are near while one is in use, also at a loop's last: the next loop's first. Behind the last loop there is none.
TEST_F(RowsAheadTest, FetchesTheNextLoopsFirstTileUnderTheLastOfThisOne) {
  RowsAhead ahead(ctx, RowSource(saved, 0), tiles.first(), 2);
  std::vector<dim_t> near;
  for (int loop = 0; loop < 2; ++loop)
    for (const Tile& tile : tiles) {
      ahead.at(tile);
      near.push_back(staged());
    }
  EXPECT_EQ(near, (std::vector<dim_t>{2, 2, 2, 2, 2, 1}));
}

TEST_F(RowsAheadTest, ALoopThatWasNotAnnouncedIsAnError) {
  RowsAhead ahead(ctx, RowSource(saved, 0), tiles.first());
  for (const Tile& tile : tiles) ahead.at(tile);
  EXPECT_THROW(ahead.at(tiles.first()), InternalError);
}

}  // namespace
}  // namespace untied
