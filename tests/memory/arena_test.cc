#include "memory/arena.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "device/cpu.h"
#include "memory/context.h"

namespace untied {
namespace {

constexpr dim_t kUnit = Arena::kAlignment;

// A device whose events never complete by themselves: it writes down who was made to wait for what.
class RecordingDevice final : public Device {
 public:
  struct Wait {
    StreamKind waiter, stream;
    std::uint64_t sequence;
    bool operator==(const Wait&) const = default;
  };

  Backend backend() const override { return Backend::kCpu; }
  std::byte* reserve(MemoryKind, dim_t bytes) override {
    memory_.resize(bytes);
    return memory_.data();
  }
  Event record(StreamKind stream) override {
    if (broken) throw DeviceError("the device has fallen off the bus");
    return {stream, ++sequences_[static_cast<int>(stream)], nullptr};
  }
  void wait(StreamKind waiter, const Event& event) override { waits.push_back({waiter, event.stream, event.sequence}); }
  void synchronize() override {}
  void copy(StreamKind, const Tensor&, const Tensor&) override {}
  void zero(StreamKind, const Tensor&) override {}

  std::vector<Wait> waits;
  bool broken = false;

 private:
  std::vector<std::byte> memory_;
  std::array<std::uint64_t, kNumStreams> sequences_{};
};

struct ArenaTest : testing::Test {
  RecordingDevice device;
  Arena arena{device, MemoryKind::kDevice, 16 * kUnit};
  Buffer take(dim_t units, StreamKind stream = StreamKind::kCompute) {
    return arena.take("test", Category::kTiles, units * kUnit, stream);
  }
};

TEST_F(ArenaTest, TakesTheLowestPlaceThatIsLargeEnough) {
  Buffer a = take(2), b = take(3), c = take(1), d = take(1);
  std::byte* const first = a.data();
  EXPECT_EQ(b.data(), first + 2 * kUnit);
  EXPECT_EQ(d.data(), first + 6 * kUnit);
  a.release();
  c.release();
  EXPECT_EQ(take(1).data(), first);
  EXPECT_EQ(take(2).data(), first);
  EXPECT_EQ(take(3).data(), first + 7 * kUnit);
}

TEST_F(ArenaTest, NeighboursMerge) {
  Buffer a = take(4), b = take(4), c = take(4), d = take(4);
  std::byte* const second = b.data();
  b.release();
  d.release();
  EXPECT_THROW(take(8), OutOfMemoryError);
  c.release();  // joins the one below and the one above
  EXPECT_EQ(take(12).data(), second);
}

TEST_F(ArenaTest, SizesAreRoundedAndEmptyBuffersHaveAPlace) {
  Buffer a = arena.take("a", Category::kTiles, 1), b = arena.take("b", Category::kTiles, 0), c = take(1);
  EXPECT_EQ(a.bytes(), kUnit);
  EXPECT_EQ(b.data(), a.data() + kUnit);
  EXPECT_EQ(c.data(), a.data() + 2 * kUnit);
}

TEST_F(ArenaTest, MovedBuffersAreReleasedOnce) {
  Buffer a = take(1);
  Buffer b = std::move(a);
  EXPECT_FALSE(a.defined());
  b = take(2);  // releases the first
  EXPECT_EQ(arena.usage().total(), 2 * kUnit);
  b.release();
  b.release();
  EXPECT_EQ(arena.usage().total(), 0);
  EXPECT_THROW(b.tensor(DType::kF32, {1}), InternalError);
}

TEST_F(ArenaTest, ATensorMustFitItsBuffer) {
  Buffer a = take(1);
  EXPECT_EQ(a.tensor(DType::kF32, {kUnit / 4}).bytes(), kUnit);
  EXPECT_THROW(a.tensor(DType::kF32, {kUnit / 4 + 1}), InternalError);
}

TEST_F(ArenaTest, ReuseWaitsForTheLastUsesOnOtherStreams) {
  Buffer a = take(2, StreamKind::kToDevice);
  a.used_on(StreamKind::kCompute);
  a.release();
  Buffer b = take(1, StreamKind::kComm);
  using Wait = RecordingDevice::Wait;
  EXPECT_EQ(device.waits, (std::vector<Wait>{{StreamKind::kComm, StreamKind::kCompute, 1},
                                             {StreamKind::kComm, StreamKind::kToDevice, 1}}));
  device.waits.clear();
  Buffer rest = take(1, StreamKind::kCompute);  // the other half of the place; its own stream needs no wait
  EXPECT_EQ(device.waits, (std::vector<Wait>{{StreamKind::kCompute, StreamKind::kToDevice, 1}}));
  device.waits.clear();
  Buffer fresh = take(1);
  EXPECT_TRUE(device.waits.empty());
}

TEST_F(ArenaTest, ALargerBufferWaitsForTheLatestUseOfEachStream) {
  Buffer a = take(1), b = take(1, StreamKind::kToHost), c = take(1), guard = take(1);
  c.release();  // compute 1
  a.release();  // compute 2
  b.release();  // to host 1; the three are one free place now
  Buffer all = take(3, StreamKind::kComm);
  using Wait = RecordingDevice::Wait;
  EXPECT_EQ(device.waits, (std::vector<Wait>{{StreamKind::kComm, StreamKind::kCompute, 2},
                                             {StreamKind::kComm, StreamKind::kToHost, 1}}));
}

// A copy in flight from one place must not hold up work in the places beside it, though they are one free place.
TEST_F(ArenaTest, OnlyThePlaceItselfIsWaitedFor) {
  Buffer a = take(2), b = take(2, StreamKind::kToHost), c = take(2);
  b.release();
  a.release();
  c.release();
  Buffer low = take(2);
  EXPECT_TRUE(device.waits.empty());
  Buffer across = take(3);
  using Wait = RecordingDevice::Wait;
  EXPECT_EQ(device.waits, (std::vector<Wait>{{StreamKind::kCompute, StreamKind::kToHost, 1}}));
  Buffer beyond = take(1, StreamKind::kToDevice);  // the second half of c
  EXPECT_EQ(device.waits.back(), (Wait{StreamKind::kToDevice, StreamKind::kCompute, 2}));
  Buffer fresh = take(4, StreamKind::kToDevice);
  EXPECT_EQ(device.waits.size(), 2u);
}

TEST_F(ArenaTest, ReleasesDuringUnwindingSurviveABrokenDevice) {
  {
    Buffer a = take(1);
    device.broken = true;
  }
  EXPECT_EQ(arena.usage().total(), 0);
}

TEST_F(ArenaTest, PeakIsTheHighestAddressAndSaysWhatWasInUse) {
  Place place;
  place.set("forward, block 3");
  arena.set_place(&place);
  Buffer weights = arena.take("w", Category::kWeights, 2 * kUnit);
  Buffer tile = arena.take("t", Category::kTiles, 3 * kUnit);
  place.set("backward, block 3");
  EXPECT_EQ(arena.peak(), 5 * kUnit);
  EXPECT_EQ(arena.peak_at(), "forward, block 3");
  tile.release();
  Buffer saved = arena.take("s", Category::kSaved, kUnit);
  EXPECT_EQ(arena.peak(), 5 * kUnit);
  EXPECT_EQ(arena.usage().total(), 3 * kUnit);
  EXPECT_EQ(arena.usage_at_peak().bytes[static_cast<int>(Category::kTiles)], 3 * kUnit);
  EXPECT_EQ(arena.usage_at_peak().bytes[static_cast<int>(Category::kSaved)], 0);
  Buffer more = arena.take("m", Category::kTiles, 3 * kUnit);
  EXPECT_EQ(arena.peak(), 6 * kUnit);
  EXPECT_EQ(arena.peak_at(), "backward, block 3");
}

TEST_F(ArenaTest, OutOfMemoryNamesBufferPlaceAndUse) {
  Place place;
  place.set("backward, block 7, attention");
  arena.set_place(&place);
  Buffer weights = arena.take("w", Category::kWeights, 12 * kUnit), hole = take(2), last = take(2);
  hole.release();
  try {
    arena.take("dk, dv", Category::kKeyValues, 4 * kUnit);
    FAIL();
  } catch (const OutOfMemoryError& error) {
    EXPECT_STREQ(error.what(),
                 "device memory: no room for 'dk, dv' (1 KiB of keys_values) in backward, block 7, attention; "
                 "3.50 KiB of 4 KiB in use: weights 3 KiB, tiles 512 B; the largest free piece is 512 B");
    EXPECT_EQ(error.code(), ExitCode::kOutOfMemory);
  }
  Arena host(device, MemoryKind::kHost, kUnit);
  try {
    host.take("block input", Category::kSaved, 2 * kUnit);
    FAIL();
  } catch (const OutOfMemoryError& error) {
    EXPECT_EQ(std::string(error.what()).find("pinned host memory: no room for 'block input'"), 0u) << error.what();
  }
}

// A random program of takes and releases.
template <class OnTake>
void run_program(Arena& arena, unsigned seed, OnTake&& on_take) {
  std::mt19937 random(seed);
  std::vector<Buffer> live;
  for (int i = 0; i < 2000; ++i) {
    if (live.size() < 20 && (live.empty() || random() % 2)) {
      live.push_back(arena.take("x", Category::kTiles, static_cast<dim_t>(random() % 5000)));
      on_take(live.back());
    } else {
      std::swap(live[random() % live.size()], live.back());
      live.pop_back();
    }
  }
}

TEST(Arena, ARunOfThePlannedSizeGetsThePlannedAddresses) {
  auto meta = make_meta_device(Backend::kCpu, 1);
  Arena plan(*meta, MemoryKind::kDevice, -1);
  const std::byte* const plan_base = plan.take("probe", Category::kTiles, 1).data();
  std::vector<dim_t> planned, ran;
  run_program(plan, 5, [&](Buffer& b) { planned.push_back(b.data() - plan_base); });

  auto device = make_cpu_device({});
  Arena run(*device, MemoryKind::kDevice, plan.peak());
  const std::byte* const base = run.take("probe", Category::kTiles, 1).data();
  run_program(run, 5, [&](Buffer& b) { ran.push_back(b.data() - base); });
  EXPECT_EQ(ran, planned);
  EXPECT_EQ(run.peak(), plan.peak());
  EXPECT_EQ(run.signature(), plan.signature());

  Arena small(*device, MemoryKind::kDevice, plan.peak() - kUnit);
  EXPECT_THROW(run_program(small, 5, [](Buffer&) {}), OutOfMemoryError);
}

TEST(Arena, LiveBuffersNeverOverlap) {
  auto device = make_cpu_device({});
  Arena arena(*device, MemoryKind::kDevice, 1 << 20);
  std::mt19937 random(11);
  std::vector<Buffer> live;
  for (int i = 0; i < 3000; ++i) {
    if (live.size() < 30 && random() % 2) {
      Buffer taken = arena.take("x", Category::kTiles, static_cast<dim_t>(random() % 3000));
      for (const Buffer& other : live)
        ASSERT_TRUE(taken.data() + taken.bytes() <= other.data() || other.data() + other.bytes() <= taken.data());
      live.push_back(std::move(taken));
    } else if (!live.empty()) {
      live.erase(live.begin() + static_cast<dim_t>(random() % live.size()));
    }
  }
}

TEST(Arena, SignatureTellsSwappedRolesApart) {
  auto meta = make_meta_device(Backend::kCpu, 1);
  Arena arena(*meta, MemoryKind::kDevice, -1);
  Buffer now = arena.take("now", Category::kTiles, 1), next = arena.take("next", Category::kTiles, 1);
  const std::uint64_t before = arena.signature();
  now = std::move(next);
  next = arena.take("next", Category::kTiles, 1);  // the two places are in use as before, the other way round
  EXPECT_NE(arena.signature(), before);
  now = std::move(next);
  next = arena.take("next", Category::kTiles, 1);
  EXPECT_EQ(arena.signature(), before);
}

TEST(Arena, OnlyAPlanIsUnlimited) {
  auto device = make_cpu_device({});
  EXPECT_THROW(Arena(*device, MemoryKind::kDevice, -1), InternalError);
}

TEST(Context, CopiesAreCountedByStream) {
  RankMemory rank(make_cpu_device({}), 4096, 4096);
  Ctx& ctx = rank.ctx();
  Buffer a = ctx.memory.take("a", Category::kTiles, DType::kF32, {8});
  Buffer b = ctx.host.take("b", Category::kSaved, DType::kF32, {8});
  const Tensor x = a.tensor(DType::kF32, {8}), y = b.tensor(DType::kF32, {8});
  copy(ctx, StreamKind::kToHost, y, x);
  copy(ctx, StreamKind::kCompute, x, y);
  EXPECT_EQ(ctx.trace.bytes_copied, 32);
  EXPECT_EQ(ctx.trace.bytes_moved, 64);
  EXPECT_EQ(ctx.trace.ops, 2);
  enter(ctx, "block {}", 3);
  EXPECT_EQ(ctx.place.text(), "block 3");
}

}  // namespace
}  // namespace untied
