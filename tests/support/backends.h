// The backends that op tests run on, and one rank on such a backend with its data.
#pragma once

#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <random>
#include <vector>

#include "device/cpu.h"
#include "memory/context.h"

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

template <class T>
double read_as(const std::byte* at) {
  T value;
  std::memcpy(&value, at, sizeof value);
  return static_cast<double>(value);
}
template <class T>
void write_as(std::byte* at, double value) {
  const T narrow = static_cast<T>(value);
  std::memcpy(at, &narrow, sizeof narrow);
}
inline double read(DType dtype, const std::byte* at) {
  switch (dtype) {
    case DType::kF32: return read_as<float>(at);
    case DType::kF64: return read_as<double>(at);
    case DType::kI32: return read_as<std::int32_t>(at);
    case DType::kBF16: return std::bit_cast<float>(static_cast<std::uint32_t>(read_as<std::uint16_t>(at)) << 16);
    default: throw InternalError("no test reads {}", name_of(dtype));
  }
}
inline void write(DType dtype, std::byte* at, double value) {
  switch (dtype) {
    case DType::kF32: return write_as<float>(at, value);
    case DType::kF64: return write_as<double>(at, value);
    case DType::kI32: return write_as<std::int32_t>(at, value);
    case DType::kBF16:
      return write_as<std::uint16_t>(at, std::bit_cast<std::uint32_t>(static_cast<float>(value)) >> 16);
    default: throw InternalError("no test writes {}", name_of(dtype));
  }
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
    const bool has_nan = dtype != DType::kI32;
    for (dim_t i = 0; i < all.size(); ++i) write(dtype, address(staged, i), has_nan ? kUntouched : 0);
    const Tensor staged_window = staged.slice(last, {gap / 2, gap / 2 + shape[last]});
    CHECK(values.empty() || static_cast<dim_t>(values.size()) == shape.size(), "{} values for {}", values.size(),
          shape.str());
    for (dim_t i = 0; i < static_cast<dim_t>(values.size()); ++i)
      write(dtype, address(staged_window, i), values[static_cast<std::size_t>(i)]);
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
    std::vector<double> values(static_cast<std::size_t>(t.size()));
    for (dim_t i = 0; i < t.size(); ++i) values[static_cast<std::size_t>(i)] = read(t.dtype(), address(staged, i));
    return values;
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
  // Of element i, in order of the indices.
  static std::byte* address(const Tensor& t, dim_t i) {
    if (t.is_contiguous()) return static_cast<std::byte*>(t.raw()) + i * static_cast<dim_t>(size_of(t.dtype()));
    dim_t at = 0;
    for (int d = t.rank() - 1; d >= 0; --d) {
      at += i % t.dim(d) * t.stride(d);
      i /= t.dim(d);
    }
    return static_cast<std::byte*>(t.raw()) + at * static_cast<dim_t>(size_of(t.dtype()));
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
