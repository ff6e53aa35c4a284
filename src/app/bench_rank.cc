#include "app/bench_rank.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <thread>

#include "base/format.h"
#include "ops/elementwise.h"

namespace untied {
namespace {

constexpr dim_t kNormals = dim_t{4} << 20;
constexpr double kBurst = 0.025;  // seconds: a GPU's clocks fall after some 60 ms of dense work
constexpr int kBursts = 3;
constexpr double kRest = 0.1;      // seconds before each burst
constexpr double kBatch = 0.1;     // seconds of sustained work between two looks at the clock
constexpr dim_t kMostGrowth = 16;  // of the number of calls, from one guess to the next

Held hold_on_host(Ctx& ctx, const char* name, DType dtype, const Shape& shape) {
  Held held{ctx.host.take(name, Category::kStaging, dtype, shape), {}};
  held.tensor = held.buffer.tensor(dtype, shape);
  return held;
}

}  // namespace

BenchRank::BenchRank(const BenchSetup& setup, std::shared_ptr<Communicator> world, std::unique_ptr<Device> device)
    : setup_(setup), world_(std::move(world)), memory_(std::move(device), setup.device_bytes, setup.host_bytes),
      random_(static_cast<std::uint64_t>(world_->rank())) {
  clock_ = blank("clock", DType::kF64, {1});
  clock_host_ = hold_on_host(ctx(), "clock", DType::kF64, {1});

  normals_ = blank("random values", DType::kF32, {kNormals});
  const Held staging = hold_on_host(ctx(), "random values", DType::kF32, {kNormals});
  std::normal_distribution<float> normal;
  std::generate_n(staging.tensor.f32(), kNormals, [&] { return normal(random_); });
  copy(ctx(), StreamKind::kCompute, normals_.tensor, staging.tensor);
  ctx().device.synchronize();
}

Held BenchRank::normal(const char* name, DType dtype, const Shape& shape) {
  Held held = blank(name, dtype, shape);
  const Tensor to = held.tensor.flat();
  // No two tensors begin at the same place: keys that equal values, say, would be structured data.
  normals_at_ = (normals_at_ + 1031 * 1024) % kNormals;
  dim_t from = normals_at_;
  for (dim_t at = 0; at < to.size();) {
    const dim_t count = std::min(to.size() - at, kNormals - from);
    const Tensor dst = to.rows(at, at + count), src = normals_.tensor.rows(from, from + count);
    if (dtype == DType::kF32) copy(ctx(), StreamKind::kCompute, dst, src);
    else cast(ctx(), dst, src);
    at += count;
    from = 0;
  }
  return held;
}

Held BenchRank::indices(const char* name, dim_t count, dim_t bound) {
  Held held = blank(name, DType::kI32, {count});
  const Held staging = hold_on_host(ctx(), name, DType::kI32, {count});
  std::uniform_int_distribution<std::int32_t> any(0, static_cast<std::int32_t>(bound - 1));
  std::generate_n(staging.tensor.as<std::int32_t>(), count, [&] { return any(random_); });
  copy(ctx(), StreamKind::kCompute, held.tensor, staging.tensor);
  ctx().device.synchronize();
  return held;
}

Rate BenchRank::measure(const Measured& what, const std::function<void()>& call) {
  enter(ctx(), "bench {}, {} {}", setup_.bench, what.name, what.shape);
  ctx().device.synchronize();  // `call` may use another stream than what filled its tensors
  const double before = ctx().trace.*what.work;
  call();  // the first of a shape also loads and plans
  const double work = (ctx().trace.*what.work - before) / what.directions;

  // As many calls as make up a burst. Every rank sees the same seconds, so all come to the same number.
  dim_t calls = 1;
  for (double seconds; (seconds = seconds_of(calls, call)) < kBurst / 2;) {
    const double wanted = static_cast<double>(calls) * kBurst / std::max(seconds, 1e-9);
    calls = std::clamp(static_cast<dim_t>(std::min(wanted, 1e9)), calls + 1, calls * kMostGrowth);
  }
  std::vector<double> bursts;
  for (int i = 0; i < kBursts; ++i) {
    if (!setup_.on_cpu()) std::this_thread::sleep_for(std::chrono::duration<double>(kRest));
    bursts.push_back(seconds_of(calls, call));
  }
  std::nth_element(bursts.begin(), bursts.begin() + kBursts / 2, bursts.end());
  const double burst = bursts[kBursts / 2] / static_cast<double>(calls);

  const bool flops = what.work == &Trace::flops;
  const double scaled = work * (flops ? 1e-12 : 1e-9);
  Rate rate{.bench = setup_.bench,
            .name = what.name,
            .shape = what.shape,
            .unit = flops ? "TFLOP/s" : "GB/s",
            .burst = scaled / burst,
            .limit = what.limit};
  if (setup_.seconds > 0) {
    const auto batch = static_cast<dim_t>(std::ceil(kBatch / burst));
    rate.sustained = scaled / sustained_seconds(batch, call);
  }
  if (world_->rank() == 0) setup_.on_rate(rate);
  return rate;
}

// Of one call, in the second half of a long run.
double BenchRank::sustained_seconds(dim_t calls, const std::function<void()>& call) {
  double run = 0, counted = 0;
  dim_t counted_calls = 0;
  while (run < setup_.seconds || counted_calls == 0) {
    const bool second_half = run >= setup_.seconds / 2;
    const double seconds = seconds_of(calls, call);
    run += seconds;
    if (!second_half) continue;
    counted += seconds;
    counted_calls += calls;
  }
  return counted / static_cast<double>(counted_calls);
}

// Of so many calls, on the slowest rank.
double BenchRank::seconds_of(dim_t calls, const std::function<void()>& call) {
  ctx().device.synchronize();
  world_->barrier(ctx());
  const auto start = std::chrono::steady_clock::now();
  for (dim_t i = 0; i < calls; ++i) call();
  ctx().device.synchronize();
  return slowest(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
}

double BenchRank::slowest(double seconds) {
  world_->check();
  if (world_->size() == 1) return seconds;
  *clock_host_.tensor.as<double>() = seconds;
  copy(ctx(), StreamKind::kComm, clock_.tensor, clock_host_.tensor);
  world_->all_reduce(ctx(), StreamKind::kComm, clock_.tensor, Reduce::kMax);
  copy(ctx(), StreamKind::kComm, clock_host_.tensor, clock_.tensor);
  ctx().device.synchronize();
  world_->check();
  return *clock_host_.tensor.as<double>();
}

std::string by(std::initializer_list<dim_t> sizes) {
  std::string text;
  for (dim_t size : sizes) text += (text.empty() ? "" : "x") + format("{}", size);
  return text;
}

}  // namespace untied
