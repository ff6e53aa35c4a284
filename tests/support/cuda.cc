#include "support/cuda.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "device/cpu.h"
#include "support/backends.h"
#include "support/bf16.h"

namespace untied::test {

std::uint64_t random_bits(std::uint64_t seed, dim_t i) {  // splitmix64
  std::uint64_t x = seed * 0x2545f4914f6cdd1du + static_cast<std::uint64_t>(i) + 0x9e3779b97f4a7c15u;
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
  x = (x ^ x >> 27) * 0x94d049bb133111ebu;
  return x ^ x >> 31;
}
float uniform_at(std::uint64_t seed, dim_t i, float scale) {
  const auto bits = static_cast<std::int32_t>(random_bits(seed, i) >> 40);
  return scale * (static_cast<float>(bits) / 8388608.0f - 1.0f);
}

ValueAt uniform(std::uint64_t seed, float scale) {
  return [=](dim_t i) { return uniform_at(seed, i, scale); };
}
ValueAt constant(double x) {
  return [x = static_cast<float>(x)](dim_t) { return x; };
}

Bound bound_of(DType stored, double fp32) { return {stored == DType::kBF16 ? kBF16Rounding : 0, fp32}; }

testing::AssertionResult within(Bound bound, const std::vector<double>& got, const std::vector<double>& want) {
  if (got.size() != want.size()) return testing::AssertionFailure() << got.size() << " values against " << want.size();
  double largest = 1, worst = 0;
  std::size_t where = 0, wrong = 0;
  for (double w : want)
    if (std::isfinite(w)) largest = std::max(largest, std::abs(w));
  for (std::size_t i = 0; i < got.size(); ++i) {
    if (got[i] == want[i] || (std::isnan(got[i]) && std::isnan(want[i]))) continue;
    double excess = std::abs(got[i] - want[i]) / (bound.relative * std::abs(want[i]) + bound.absolute * largest);
    if (std::isnan(excess)) excess = std::numeric_limits<double>::infinity();
    wrong += excess > 1;
    if (excess > worst) worst = excess, where = i;
  }
  if (wrong == 0) return testing::AssertionSuccess();
  return testing::AssertionFailure() << wrong << " of " << got.size() << " values are off; [" << where << "] is "
                                     << got[where] << ", not " << want[where] << ", " << worst
                                     << " times what is allowed";
}

BothBackends::BothBackends(dim_t device_bytes)
    : cpu_(make_cpu_device({.threads = 2}), 4 * kGiB, 0),  // untouched pages cost nothing
      cuda_(make_cuda_device(0), device_bytes, 128 * kMiB) {}

Tensor BothBackends::take(Ctx& ctx, DType dtype, const Shape& shape) {
  buffers_.push_back(ctx.memory.take("test", Category::kTiles, dtype, shape));
  return buffers_.back().tensor(dtype, shape);
}

OnBoth BothBackends::make(DType dtype, const Shape& shape, const ValueAt& value, const MakeOptions& options) {
  Shape whole = shape;
  const int last = shape.rank() - 1;
  whole[last] += options.gap;
  const Range columns{options.gap / 2, options.gap / 2 + shape[last]};
  OnBoth both;
  both.cpu_whole = take(cpu(), dtype == DType::kBF16 && !options.cpu_keeps_bf16 ? DType::kF32 : dtype, whole);
  both.cuda_whole = take(cuda(), dtype, whole);
  both.cpu = both.cpu_whole.slice(last, columns), both.cuda = both.cuda_whole.slice(last, columns);

  const Staged staged = stage(dtype, whole);
  for (dim_t i = 0, n = 0; i < whole.size(); ++i) {
    const dim_t column = i % whole[last];
    double x = kUntouched;
    if (columns.begin <= column && column < columns.end) {
      x = value(n++);
      if (dtype == DType::kBF16) x = rounded_to_bf16(x);
    }
    set_element(both.cpu_whole, i, x);
    set_element(staged.tensor, i, x);
  }
  cuda().device.copy(StreamKind::kCompute, both.cuda_whole, staged.tensor);
  cuda().device.synchronize();
  return both;
}

void BothBackends::upload(const Tensor& to, const ValueAt& value) {
  const Staged staged = stage(to.dtype(), to.shape());
  for (dim_t i = 0; i < to.size(); ++i) set_element(staged.tensor, i, value(i));
  cuda().device.copy(StreamKind::kCompute, to, staged.tensor);
  cuda().device.synchronize();
}

std::vector<double> BothBackends::fetch(const Tensor& t) { return host_values(staged_copy(t).tensor); }

std::vector<std::byte> BothBackends::fetch_bytes(const Tensor& t) {
  const Staged staged = staged_copy(t);
  return {staged.tensor.as<std::byte>(), staged.tensor.as<std::byte>() + t.bytes()};
}

testing::AssertionResult BothBackends::agree(const OnBoth& t, Bound bound) {
  return within(bound, fetch(t.cuda_whole), host_values(t.cpu_whole));
}

BothBackends::Staged BothBackends::stage(DType dtype, const Shape& shape) {
  Buffer buffer = cuda().host.take("test", Category::kStaging, dtype, shape);
  const Tensor tensor = buffer.tensor(dtype, shape);
  return {std::move(buffer), tensor};
}

BothBackends::Staged BothBackends::staged_copy(const Tensor& t) {
  Staged staged = stage(t.dtype(), t.shape());
  cuda().device.copy(StreamKind::kCompute, staged.tensor, t);
  cuda().device.synchronize();
  return staged;
}

void CudaTest::SetUp() {
  if (cuda_device_count() == 0) GTEST_SKIP() << "no GPU";
}

BothBackends& BothBackendsTest::both() {
  if (!both_) both_.emplace();
  return *both_;
}

std::unique_ptr<BothBackends> BothBackendsTest::large(dim_t device_bytes) {
  try {
    return std::make_unique<BothBackends>(device_bytes);
  } catch (const OutOfMemoryError& error) {
    too_large_ = error.what();
    return nullptr;
  }
}

}  // namespace untied::test
