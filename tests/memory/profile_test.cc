#include "memory/profile.h"

#include <gtest/gtest.h>

#include "device/cpu.h"

namespace untied {
namespace {

// A device whose clock the test turns.
class Clocked final : public Device {
 public:
  double now = 0;
  Backend backend() const override { return Backend::kCpu; }
  std::byte* reserve(MemoryKind, dim_t) override { return nullptr; }
  Event record(StreamKind) override { return {}; }
  void wait(StreamKind, const Event&) override {}
  void synchronize() override {}
  void copy(StreamKind, const Tensor&, const Tensor&) override {}
  void zero(StreamKind, const Tensor&) override {}
  TimeMark mark(StreamKind) override { return std::make_shared<double>(now); }
  double seconds_between(const TimeMark& begin, const TimeMark& end) override {
    return *static_cast<double*>(end.get()) - *static_cast<double*>(begin.get());
  }
};

TEST(Profile, SumsByOpAndStreamAndFindsTheWaits) {
  Clocked device;
  Profile profile;
  const auto span = [&](const char* op, StreamKind stream, double begin, double end) {
    device.now = begin;
    const Device::TimeMark from = device.mark(stream);
    device.now = end;
    profile.spans.push_back({op, stream, from, device.mark(stream)});
  };
  span("matmul", StreamKind::kCompute, 1, 3);
  span("copy", StreamKind::kToDevice, 2, 7);
  span("attention", StreamKind::kCompute, 3, 4);
  span("matmul", StreamKind::kCompute, 7, 8);  // waited from 4 to 7
  span("copy", StreamKind::kToHost, 8, 20);
  const ProfileSummary s = summarize(device, profile);
  EXPECT_EQ(s.seconds, 7);
  EXPECT_EQ(s.waiting, 3);
  ASSERT_EQ(s.rows.size(), 4u);
  EXPECT_EQ(s.rows[0].op, "copy");
  EXPECT_EQ(s.rows[0].stream, StreamKind::kToHost);
  EXPECT_EQ(s.rows[0].seconds, 12);
  EXPECT_EQ(s.rows[2].op, "matmul");
  EXPECT_EQ(s.rows[2].calls, 2);
  EXPECT_EQ(s.rows[2].seconds, 3);
}

// The host's clock, where a backend has no better one.
TEST(Profile, TheCpuRunsOnTheHostsClock) {
  RankMemory memory(make_cpu_device({}), 1 << 20, 1 << 20);
  Ctx& ctx = memory.ctx();
  Profile profile;
  ctx.profile = &profile;
  const Buffer a = ctx.memory.take("a", Category::kTiles, 1 << 18), b = ctx.memory.take("b", Category::kTiles, 1 << 18);
  copy(ctx, StreamKind::kCompute, a.tensor(DType::kF32, {1 << 16}), b.tensor(DType::kF32, {1 << 16}));
  ctx.profile = nullptr;
  copy(ctx, StreamKind::kCompute, a.tensor(DType::kF32, {1 << 16}), b.tensor(DType::kF32, {1 << 16}));
  const ProfileSummary s = summarize(ctx.device, profile);
  ASSERT_EQ(s.rows.size(), 1u);
  EXPECT_EQ(s.rows[0].op, "copy");
  EXPECT_EQ(s.rows[0].calls, 1);
  EXPECT_GT(s.rows[0].seconds, 0);
  EXPECT_LT(s.rows[0].seconds, 1);
}

TEST(Profile, NothingIsNothing) {
  Clocked device;
  const ProfileSummary s = summarize(device, {});
  EXPECT_TRUE(s.rows.empty());
  EXPECT_EQ(s.seconds, 0);
}

}  // namespace
}  // namespace untied
