// The backends that op tests run on, and one rank on such a backend with its data.
#pragma once

#include <cmath>
#include <limits>
#include <memory>
#include <random>
#include <vector>

#include "device/cpu.h"
#include "memory/context.h"
#include "support/bf16.h"

namespace untied::test {

// One row of the table: where an op runs, in which activation type.
struct OnBackend {
  const char* name;
  Backend backend;
  DType activations;
  int threads;
};
inline std::vector<OnBackend> backends() {
  return {{"cpu, 1 thread", Backend::kCpu, DType::kF32, 1}, {"cpu, 2 threads", Backend::kCpu, DType::kF32, 2}};
}

inline constexpr double kUntouched = std::numeric_limits<double>::quiet_NaN();

// n draws from a normal distribution, exact in fp32.
inline std::vector<double> draw(dim_t n, unsigned seed, double scale = 1) {
  std::mt19937 engine(seed);
  std::normal_distribution<float> normal;
  std::vector<double> values(static_cast<std::size_t>(n));
  for (double& v : values) v = normal(engine) * static_cast<float>(scale);
  return values;
}

// Element i of a contiguous tensor that the host can touch.
inline double element(const Tensor& t, dim_t i) {
  switch (t.dtype()) {
    case DType::kF32: return t.as<float>()[i];
    case DType::kF64: return t.as<double>()[i];
    case DType::kI32: return t.as<std::int32_t>()[i];
    case DType::kBF16: return from_bf16_bits(t.as<std::uint16_t>()[i]);
    default: throw InternalError("no test reads {}", t.str());
  }
}
// Rounded to what it holds; a NaN is 0 among integers.
inline void set_element(const Tensor& t, dim_t i, double x) {
  switch (t.dtype()) {
    case DType::kF32: t.as<float>()[i] = static_cast<float>(x); return;
    case DType::kF64: t.as<double>()[i] = x; return;
    case DType::kI32: t.as<std::int32_t>()[i] = std::isnan(x) ? 0 : static_cast<std::int32_t>(x); return;
    case DType::kBF16: t.as<std::uint16_t>()[i] = bf16_bits(x); return;
    default: throw InternalError("no test writes {}", t.str());
  }
}
inline std::vector<double> host_values(const Tensor& t) {
  CHECK(t.is_contiguous(), "values of the strided view {}", t.str());
  std::vector<double> values(static_cast<std::size_t>(t.size()));
  for (dim_t i = 0; i < t.size(); ++i) values[static_cast<std::size_t>(i)] = element(t, i);
  return values;
}

// A rank with memory of its own. Tensors live as long as it does. put and get go through pinned memory and the copy streams,
// so that the same test runs on a device whose memory the host cannot touch.
class Rank {
 public:
  explicit Rank(const OnBackend& on = backends()[0]) : Rank(make_cpu_device({.threads = on.threads}), kCapacity) {}
  static Rank meta(Backend target, int threads = 1) { return Rank(make_meta_device(target, threads), -1); }

  Ctx& ctx() { return memory_->ctx(); }

  Tensor make(DType dtype, const Shape& shape) {
    buffers_.push_back(ctx().memory.take("test", Category::kTiles, dtype, shape));
    return buffers_.back().tensor(dtype, shape);
  }

  // A tensor with these values (none: untouched memory, that is NaN). gap > 0: a window into rows that are longer by so many
  // elements, with NaN around it (see gaps_untouched).
  Tensor put(const std::vector<double>& values, DType dtype, const Shape& shape, dim_t gap = 0) {
    Shape whole = shape;
    const int last = shape.rank() - 1;
    whole[last] += gap;
    const Tensor all = make(dtype, whole);
    const Tensor window = all.slice(last, {gap / 2, gap / 2 + shape[last]});
    const Tensor staged = stage(dtype, whole);
    for (dim_t i = 0; i < all.size(); ++i) set_element(staged, i, kUntouched);
    CHECK(values.empty() || static_cast<dim_t>(values.size()) == shape.size(), "{} values for {}", values.size(),
          shape.str());
    for (dim_t i = 0; i < static_cast<dim_t>(values.size()); ++i)
      set_element(staged, i / shape[last] * whole[last] + gap / 2 + i % shape[last],
                  values[static_cast<std::size_t>(i)]);
    ctx().device.copy(StreamKind::kToDevice, all, staged);
    ctx().device.synchronize();
    if (gap > 0) with_gaps_.push_back({all, window.size()});
    return window;
  }
  Tensor put(const std::vector<double>& values, const Shape& shape, dim_t gap = 0) {
    return put(values, DType::kF32, shape, gap);
  }

  std::vector<double> get(const Tensor& t) {
    const Tensor staged = stage(t.dtype(), t.shape());
    ctx().device.copy(StreamKind::kToHost, staged, t);
    ctx().device.synchronize();
    return host_values(staged);
  }

  // Whether all that lies around the windows is still NaN.
  bool gaps_untouched() {
    for (const auto& [all, inside] : with_gaps_) {
      dim_t numbers = 0;
      for (double v : get(all)) numbers += !std::isnan(v);
      if (numbers > inside) return false;
    }
    return true;
  }

 private:
  static constexpr dim_t kCapacity = dim_t{256} << 20;  // of addresses; untouched pages cost nothing

  Rank(std::unique_ptr<Device> device, dim_t capacity)
      : memory_(std::make_unique<RankMemory>(std::move(device), capacity, capacity)) {}

  Tensor stage(DType dtype, const Shape& shape) {
    staging_.release();
    staging_ = ctx().host.take("test", Category::kStaging, dtype, shape);
    return staging_.tensor(dtype, shape);
  }

  struct WithGap {
    Tensor all;
    dim_t inside;
  };
  std::unique_ptr<RankMemory> memory_;
  std::vector<Buffer> buffers_;
  Buffer staging_;
  std::vector<WithGap> with_gaps_;
};

// The text of what `work` throws as an E; empty when it throws nothing.
template <class E, class Work>
std::string message_of(Work&& work) {
  try {
    work();
  } catch (const E& e) {
    return e.what();
  }
  return "";
}

}  // namespace untied::test
