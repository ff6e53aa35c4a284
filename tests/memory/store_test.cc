#include "memory/store.h"

#include <gtest/gtest.h>

#include <vector>

#include "device/cpu.h"
#include "memory/tiles.h"

namespace untied {
namespace {

constexpr dim_t kRows = 12, kColumns = 6;
const Range kAll{0, kColumns};

// Copies are lazy, so an order that SavedTensor forgets shows every time.
struct Store {
  explicit Store(Tier tier) : tier(tier) {}
  const Tier tier;
  RankMemory memory{make_cpu_device({.lazy_copies = true}), 1 << 16, 1 << 16};
  Ctx& ctx = memory.ctx();
  SavedTensor saved{ctx, tier, "x_in", 2, DType::kF32, kRows, kColumns};
  Buffer source_buffer = ctx.memory.take("source", Category::kHidden, DType::kF32, {kRows, kColumns});
  Tensor source = source_buffer.tensor(DType::kF32, {kRows, kColumns});

  // As the compute stream would: now.
  static void fill(const Tensor& t, float first) {
    for (dim_t i = 0; i < t.dim(0); ++i)
      for (dim_t j = 0; j < t.dim(1); ++j) t.f32()[i * t.stride(0) + j] = first + static_cast<float>(10 * i + j);
  }
  static std::vector<float> values(const Tensor& t) {
    std::vector<float> out;
    for (dim_t i = 0; i < t.dim(0); ++i)
      for (dim_t j = 0; j < t.dim(1); ++j) out.push_back(t.f32()[i * t.stride(0) + j]);
    return out;
  }
  void save_all(int slot, float first) {
    fill(source, first);
    ctx.device.wait(StreamKind::kCompute, saved.save(ctx, slot, {{0, kRows}, kAll}, source));
  }
  bool on_host() const { return tier == Tier::kHost; }
};

struct StoreTest : testing::TestWithParam<Tier>, Store {
  StoreTest() : Store(GetParam()) {}
};
struct HostStoreTest : testing::Test, Store {
  HostStoreTest() : Store(Tier::kHost) {}
};

INSTANTIATE_TEST_SUITE_P(Tiers, StoreTest, testing::Values(Tier::kDevice, Tier::kHost),
                         [](const auto& tier) { return std::string(name_of(tier.param)); });

TEST_P(StoreTest, GivesBackWhatWasSaved) {
  save_all(0, 100), save_all(1, 500);
  Fetched a = saved.fetch(ctx, 0, {{0, kRows}, kAll}), b = saved.fetch(ctx, 1, {{3, 5}, {2, 4}});
  const Tensor x = a.tensor(ctx), y = b.tensor(ctx);
  CHECK_SHAPE(x, kRows, kColumns);
  EXPECT_EQ(values(x).front(), 100);
  EXPECT_EQ(values(x).back(), 215);
  EXPECT_EQ(values(y), (std::vector<float>{532, 533, 542, 543}));
  EXPECT_EQ(values(a.tensor(ctx)), values(x));  // a second look is free
}

TEST_P(StoreTest, SavesRegionByRegion) {
  fill(source, 0);
  for (const Tile tile : TileLoop(ctx, kRows, 5))
    for (Range columns : {Range{0, 2}, Range{2, 6}})
      ctx.device.wait(StreamKind::kCompute,
                      saved.save(ctx, 0, {tile.rows, columns}, source.rows(tile.rows).slice(1, columns)));
  Fetched back = saved.fetch(ctx, 0, {{0, kRows}, kAll});
  EXPECT_EQ(values(back.tensor(ctx)), values(source));
}

TEST_P(StoreTest, TheEventSaysWhenTheSourceMayChange) {
  fill(source, 1);
  const Event copied = saved.save(ctx, 0, {{0, kRows}, kAll}, source);
  EXPECT_EQ(copied.pending(), on_host());
  ctx.device.wait(StreamKind::kCompute, copied);
  fill(source, 700);
  Fetched back = saved.fetch(ctx, 0, {{0, 1}, {0, 1}});
  EXPECT_EQ(values(back.tensor(ctx)), std::vector<float>{1});
}

TEST_P(StoreTest, AHolderMayBeReleasedAtOnce) {
  Buffer tile = ctx.memory.take("tile", Category::kTiles, DType::kF32, {2, kColumns});
  const Tensor x = tile.tensor(DType::kF32, {2, kColumns});
  fill(x, 1);
  saved.save(ctx, 0, {{0, 2}, kAll}, x, tile);
  tile.release();
  // The next tile lands on the same place: taking it makes compute wait.
  Buffer next = ctx.memory.take("tile", Category::kTiles, DType::kF32, {2, kColumns});
  ASSERT_EQ(next.data(), x.as<std::byte>());
  fill(next.tensor(DType::kF32, {2, kColumns}), 900);
  Fetched back = saved.fetch(ctx, 0, {{0, 1}, {0, 2}});
  EXPECT_EQ(values(back.tensor(ctx)), (std::vector<float>{1, 2}));
  Buffer other = ctx.memory.take("other", Category::kTiles, 4);
  EXPECT_THROW(saved.save(ctx, 0, {{0, 2}, kAll}, next.tensor(DType::kF32, {2, kColumns}), other), InternalError);
}

TEST_P(StoreTest, AFetchSeesTheSavesBeforeIt) {
  save_all(0, 1);
  fill(source, 2);
  const Event copied = saved.save(ctx, 0, {{0, kRows}, kAll}, source);  // nobody waits for it but the fetch
  Fetched back = saved.fetch(ctx, 0, {{0, 1}, {0, 1}});
  EXPECT_EQ(values(back.tensor(ctx)), std::vector<float>{2});
  ctx.device.wait(StreamKind::kCompute, copied);
}

TEST_F(HostStoreTest, ASaveWaitsForTheFetchesBeforeIt) {
  save_all(0, 1);
  Fetched before = saved.fetch(ctx, 0, {{0, 1}, {0, 1}});
  save_all(0, 2);  // runs its copy at once, and before it the fetch
  EXPECT_EQ(values(before.tensor(ctx)), std::vector<float>{1});
}

// Staging of one tile becomes the staging of a later one, while tiles are fetched ahead.
TEST_P(StoreTest, StagingIsNotReusedTooEarly) {
  save_all(0, 0);
  TileLoop loop(ctx, kRows, 1);
  std::vector<float> seen;
  Fetched now, next = saved.fetch(ctx, 0, {loop.first().rows, kAll});
  for (const Tile tile : loop) {
    now = std::move(next);
    EXPECT_FALSE(next.defined());
    if (!tile.next.empty()) next = saved.fetch(ctx, 0, {tile.next, kAll});
    for (float v : values(now.tensor(ctx))) seen.push_back(v);
  }
  EXPECT_EQ(seen, values(source));
  const dim_t staged = ctx.memory.usage_at_peak().bytes[static_cast<int>(Category::kStaging)];
  EXPECT_EQ(staged, on_host() ? 2 * Arena::kAlignment : 0);
}

// What compute would read had it not waited: the test that lazy copies make the difference visible.
TEST_F(HostStoreTest, FetchedDataIsThereOnlyAfterTheWait) {
  save_all(0, 5);
  Buffer probe = ctx.memory.take("probe", Category::kTiles, 4);  // where the staging will be
  *probe.tensor(DType::kF32, {1}).f32() = -1;
  const std::byte* const place = probe.data();
  probe.release();
  Fetched x = saved.fetch(ctx, 0, {{0, 1}, {0, 1}});
  EXPECT_EQ(*reinterpret_cast<const float*>(place), -1);
  EXPECT_EQ(*x.tensor(ctx).f32(), 5);
  EXPECT_EQ(x.tensor(ctx).as<std::byte>(), place);
}

TEST_P(StoreTest, DeviceTierFetchesWithoutACopy) {
  save_all(0, 1);
  const double copied = ctx.trace.bytes_copied, moved = ctx.trace.bytes_moved;
  Fetched x = saved.fetch(ctx, 0, {{0, kRows}, {1, 3}});
  EXPECT_EQ(x.tensor(ctx).stride(0), on_host() ? 2 : kColumns);
  EXPECT_EQ(ctx.trace.bytes_moved, moved);
  EXPECT_EQ(ctx.trace.bytes_copied - copied, on_host() ? kRows * 2 * 4 : 0);
}

TEST_P(StoreTest, TakesItsMemoryFromItsTier) {
  const int category = static_cast<int>(Category::kSaved);
  const dim_t slot = round_up(kRows * kColumns * 4, Arena::kAlignment);
  EXPECT_EQ(ctx.memory.usage().bytes[category], on_host() ? 0 : 2 * slot);
  EXPECT_EQ(ctx.host.usage().bytes[category], on_host() ? 2 * slot : 0);
}

TEST_P(StoreTest, RefusesWhatWasNotSavedInThisStep) {
  fill(source, 0);
  auto save = [&](Range rows) {
    ctx.device.wait(StreamKind::kCompute, saved.save(ctx, 0, {rows, kAll}, source.rows(rows)));
  };
  save({8, 12});
  save({0, 4});
  EXPECT_THROW(saved.fetch(ctx, 0, {{3, 5}, kAll}), InternalError);
  EXPECT_THROW(saved.fetch(ctx, 1, {{0, 1}, kAll}), InternalError);
  EXPECT_NO_THROW(saved.fetch(ctx, 0, {{9, 11}, kAll}));
  save({4, 8});
  EXPECT_NO_THROW(saved.fetch(ctx, 0, {{0, 12}, kAll}));
  saved.begin_step();
  try {
    saved.fetch(ctx, 0, {{0, 1}, kAll});
    FAIL();
  } catch (const InternalError& error) {
    EXPECT_NE(std::string(error.what()).find("'x_in' slot 0: rows [0, 1), columns [0, 6) were not saved"),
              std::string::npos)
        << error.what();
  }
}

TEST_P(StoreTest, RefusesRegionsThatAreNotThere) {
  EXPECT_THROW(saved.fetch(ctx, 2, {{0, 1}, kAll}), InternalError);
  EXPECT_THROW(saved.fetch(ctx, -1, {{0, 1}, kAll}), InternalError);
  EXPECT_THROW((void)saved.save(ctx, 0, {{0, kRows + 1}, kAll}, source), InternalError);
  EXPECT_THROW((void)saved.save(ctx, 0, {{0, kRows}, {0, kColumns - 1}}, source), InternalError);
  EXPECT_THROW(Fetched().tensor(ctx), InternalError);
  SavedTensor nothing;
  EXPECT_THROW(nothing.fetch(ctx, 0, {}), InternalError);
}

TEST_F(HostStoreTest, HostMemoryThatIsTooSmallIsNamed) {
  try {
    SavedTensor large(ctx, Tier::kHost, "attention output", 1000, DType::kF32, kRows, kColumns);
    FAIL();
  } catch (const OutOfMemoryError& error) {
    EXPECT_EQ(std::string(error.what()).find("pinned host memory: no room for 'attention output'"), 0u) << error.what();
  }
}

TEST(Fetched, MayBeAResidentView) {
  RankMemory memory(make_cpu_device({}), 4096, 4096);
  std::vector<float> values{1, 2, 3, 4};
  Fetched x(Tensor(values.data(), DType::kF32, {2, 2}));
  EXPECT_EQ(x.tensor(memory.ctx()).f32(), values.data());
}

// Plan and run agree to the byte: takes do not depend on data or on which tier answers how fast.
TEST(SavedTensor, MetaAndCpuHaveTheSamePeaks) {
  auto program = [](Ctx& ctx) {
    SavedTensor saved(ctx, Tier::kHost, "x", 3, DType::kF32, 100, 40);
    Buffer x = ctx.memory.take("x", Category::kHidden, DType::kF32, {100, 40});
    for (int slot = 0; slot < 3; ++slot)
      saved.save(ctx, slot, {{0, 100}, {0, 40}}, x.tensor(DType::kF32, {100, 40}), x);
    for (int slot = 2; slot >= 0; --slot) {
      TileLoop loop(ctx, 100, 7);
      Fetched now, next = saved.fetch(ctx, slot, {loop.first().rows, {0, 40}});
      for (const Tile tile : loop) {
        now = std::move(next);
        if (!tile.next.empty()) next = saved.fetch(ctx, slot, {tile.next, {0, 40}});
        now.tensor(ctx);
      }
    }
    return std::tuple(ctx.memory.peak(), ctx.host.peak(), ctx.trace.bytes_copied, ctx.trace.ops);
  };
  RankMemory cpu(make_cpu_device({.lazy_copies = true}), 1 << 20, 1 << 20),
      meta(make_meta_device(Backend::kCpu, 1), -1, -1);
  EXPECT_EQ(program(cpu.ctx()), program(meta.ctx()));
}

}  // namespace
}  // namespace untied
