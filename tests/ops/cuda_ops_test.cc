// The cuda kernels of the element-wise ops against the cpu backend, on the same values; then each of them beyond 2^31 bytes and
// 2^31 elements. The device beneath them comes first: a test of an op means nothing if copies are wrong.
//
// The cpu computes in fp32 only. For a bf16 op it is given the same bf16 values, widened, and the results differ by the one
// rounding of what the kernel stores.
#ifdef UNTIED_HAS_CUDA

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <numeric>
#include <optional>
#include <vector>

#include "device/cpu.h"
#include "device/cuda.h"
#include "memory/context.h"
#include "ops/adamw.h"
#include "ops/cross_entropy.h"
#include "ops/elementwise.h"
#include "ops/embedding.h"
#include "ops/heads.h"
#include "ops/matmul.h"
#include "ops/rmsnorm.h"
#include "ops/rope.h"
#include "ops/swiglu.h"

namespace untied::test {
namespace {

constexpr dim_t kGiB = dim_t{1} << 30, kMiB = dim_t{1} << 20;
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

// ------------------------------------------------------------------------------------------------------------------- values

std::uint64_t mix(std::uint64_t x) {  // splitmix64
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
  x = (x ^ x >> 27) * 0x94d049bb133111ebu;
  return x ^ x >> 31;
}
// Uniform in [-scale, scale), a function of (seed, i) alone.
float value(std::uint64_t seed, dim_t i, float scale = 2) {
  const auto bits = static_cast<std::int32_t>(mix(seed * 0x2545f4914f6cdd1du + static_cast<std::uint64_t>(i)) >> 40);
  return scale * (static_cast<float>(bits) / 8388608.0f - 1.0f);
}

std::uint16_t to_bf16(float x) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(x);
  if (std::isnan(x)) return static_cast<std::uint16_t>(bits >> 16 | 0x40u);
  return static_cast<std::uint16_t>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}
float from_bf16(std::uint16_t x) { return std::bit_cast<float>(static_cast<std::uint32_t>(x) << 16); }
float rounded(DType dtype, float x) { return dtype == DType::kBF16 ? from_bf16(to_bf16(x)) : x; }

using Values = std::vector<float>;
// What an element is, by its number.
using Draw = std::function<float(dim_t)>;
Draw uniform(std::uint64_t seed, float scale = 2) {
  return [=](dim_t i) { return value(seed, i, scale); };
}
Draw constant(float x) {
  return [=](dim_t) { return x; };
}

double element(const Tensor& t, dim_t i) {
  switch (t.dtype()) {
    case DType::kF32: return t.as<float>()[i];
    case DType::kF64: return t.as<double>()[i];
    case DType::kI32: return t.as<std::int32_t>()[i];
    case DType::kBF16: return from_bf16(t.as<std::uint16_t>()[i]);
    default: throw InternalError("no test reads {}", t.str());
  }
}
void set_element(const Tensor& t, dim_t i, float x) {
  switch (t.dtype()) {
    case DType::kF32: t.as<float>()[i] = x; return;
    case DType::kF64: t.as<double>()[i] = x; return;
    case DType::kI32: t.as<std::int32_t>()[i] = std::isnan(x) ? 0 : static_cast<std::int32_t>(x); return;
    case DType::kBF16: t.as<std::uint16_t>()[i] = to_bf16(x); return;
    default: throw InternalError("no test writes {}", t.str());
  }
}

// --------------------------------------------------------------------------------------------------------------- two backends

// A tensor on both backends. `whole`: with what lies around it, which holds NaN (or 0) and is nobody's.
struct Both {
  Tensor cpu, cuda, cpu_whole, cuda_whole;
};

// One rank on each backend. Tensors live until the next clear().
class Backends {
 public:
  explicit Backends(dim_t device_bytes = kGiB)
      : cpu_(make_cpu_device({.threads = 2}), 4 * kGiB, 0),  // untouched pages cost nothing
        cuda_(make_cuda_device(0), device_bytes, 128 * kMiB) {}

  Ctx& cpu() { return cpu_.ctx(); }
  Ctx& cuda() { return cuda_.ctx(); }
  void clear() { buffers_.clear(); }

  Tensor take(Ctx& ctx, DType dtype, const Shape& shape) {
    buffers_.push_back(ctx.memory.take("test", Category::kTiles, dtype, shape));
    return buffers_.back().tensor(dtype, shape);
  }

  // draw(i) for element i, rounded to dtype, on both; the cpu's copy is fp32 for bf16 unless `exact`. gap: rows are so many
  // elements apart, the tensor begins gap / 2 into the first.
  Both make(DType dtype, const Shape& shape, const Draw& draw, dim_t gap = 0, bool exact = false) {
    Shape whole = shape;
    const int last = shape.rank() - 1;
    whole[last] += gap;
    const Range columns{gap / 2, gap / 2 + shape[last]};
    Both both;
    both.cpu_whole = take(cpu(), dtype == DType::kBF16 && !exact ? DType::kF32 : dtype, whole);
    both.cuda_whole = take(cuda(), dtype, whole);
    both.cpu = both.cpu_whole.slice(last, columns), both.cuda = both.cuda_whole.slice(last, columns);

    const Staged staged = stage(dtype, whole);
    for (dim_t i = 0, n = 0; i < whole.size(); ++i) {
      const dim_t column = i % whole[last];
      const bool inside = columns.begin <= column && column < columns.end;
      const float x = inside ? rounded(dtype, draw(n++)) : kNaN;
      set_element(both.cpu_whole, i, x);
      set_element(staged.tensor, i, x);
    }
    cuda().device.copy(StreamKind::kCompute, both.cuda_whole, staged.tensor);
    cuda().device.synchronize();
    return both;
  }

  // A device tensor, on the host and contiguous.
  std::vector<double> fetch(const Tensor& t) {
    const Staged staged = stage(t.dtype(), t.shape());
    cuda().device.copy(StreamKind::kCompute, staged.tensor, t);
    cuda().device.synchronize();
    std::vector<double> values(static_cast<std::size_t>(t.size()));
    for (dim_t i = 0; i < t.size(); ++i) values[static_cast<std::size_t>(i)] = element(staged.tensor, i);
    return values;
  }
  std::vector<std::byte> fetch_bytes(const Tensor& t) {
    const Staged staged = stage(t.dtype(), t.shape());
    cuda().device.copy(StreamKind::kCompute, staged.tensor, t);
    cuda().device.synchronize();
    return {staged.tensor.as<std::byte>(), staged.tensor.as<std::byte>() + t.bytes()};
  }
  void upload(const Tensor& to, const Draw& draw) {
    const Staged staged = stage(to.dtype(), to.shape());
    for (dim_t i = 0; i < to.size(); ++i) set_element(staged.tensor, i, draw(i));
    cuda().device.copy(StreamKind::kCompute, to, staged.tensor);
    cuda().device.synchronize();
  }

 private:
  struct Staged {
    Buffer buffer;
    Tensor tensor;
  };
  Staged stage(DType dtype, const Shape& shape) {
    Buffer buffer = cuda().host.take("test", Category::kStaging, dtype, shape);
    const Tensor tensor = buffer.tensor(dtype, shape);
    return {std::move(buffer), tensor};
  }

  RankMemory cpu_, cuda_;
  std::vector<Buffer> buffers_;
};

// |got - want| <= relative |want| + absolute max(1, largest |want|), element by element.
struct Bound {
  double relative, absolute;
};
// What bf16 storage adds: half a unit in the last place, 2^-8, and 2^-6 of that for values near the middle of two.
constexpr double kBF16Rounding = 1.02 / 256;
Bound bound(DType stored, double fp32) { return {stored == DType::kBF16 ? kBF16Rounding : 0, fp32}; }

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

std::vector<double> host_values(const Tensor& cpu_whole) {
  std::vector<double> values(static_cast<std::size_t>(cpu_whole.size()));
  for (dim_t i = 0; i < cpu_whole.size(); ++i) values[static_cast<std::size_t>(i)] = element(cpu_whole, i);
  return values;
}

// The whole of it, so that what lies between the rows counts too.
#define EXPECT_SAME(backends, both, bound) \
  EXPECT_TRUE(within(bound, (backends).fetch((both).cuda_whole), host_values((both).cpu_whole)))

struct Case {
  DType dtype;
  dim_t rows, columns, gap;
  std::string str() const { return format("{} [{}, {}], gap {}", name_of(dtype), rows, columns, gap); }
};
// Gap 8 keeps packs of 16 bytes in bf16 and fp32 but breaks contiguity; 3 forces single elements. (An offset of gap / 2 = 4
// elements is 8 bytes in bf16, so 16 is there too.)
std::vector<Case> cases(std::vector<dim_t> gaps = {0, 3, 8, 16}) {
  std::vector<Case> all;
  for (DType dtype : {DType::kF32, DType::kBF16})
    for (dim_t rows : {1, 3, 113, 1023, 1025})
      for (dim_t columns : {8, 40, 128, 4096})
        for (dim_t gap : gaps)
          if (gap == 0 || rows <= 113 || columns <= 128) all.push_back({dtype, rows, columns, gap});
  return all;
}

class CudaTest : public testing::Test {
 protected:
  void SetUp() override {
    if (cuda_device_count() == 0) GTEST_SKIP() << "no GPU";
  }
  Backends& both() {
    if (!backends_) backends_.emplace();
    return *backends_;
  }

 private:
  std::optional<Backends> backends_;
};

// ---------------------------------------------------------------------------------------------------------------- the device

class CudaDevice : public CudaTest {};

TEST_F(CudaDevice, CopiesEveryMixOfStrides) {
  const Shape whole{4, 5, 6, 7};
  for (int narrowed = 0; narrowed < 16; ++narrowed) {
    Both src = both().make(DType::kI32, whole, [](dim_t i) { return static_cast<float>(i + 1); });
    Both dst = both().make(DType::kI32, whole, constant(0));
    for (int d = 0; d < 4; ++d)
      if (narrowed >> d & 1)
        for (auto t : {&Both::cpu, &Both::cuda}) {
          src.*t = (src.*t).slice(d, {1, whole[d] - 1});
          dst.*t = (dst.*t).slice(d, {2, whole[d]});
        }
    both().cpu().device.copy(StreamKind::kCompute, dst.cpu, src.cpu);
    both().cuda().device.copy(StreamKind::kToDevice, dst.cuda, src.cuda);
    both().cuda().device.synchronize();
    EXPECT_EQ(both().fetch(dst.cuda_whole), host_values(dst.cpu_whole)) << "narrowed dimensions " << narrowed;

    both().cpu().device.zero(StreamKind::kCompute, src.cpu);
    both().cuda().device.zero(StreamKind::kCompute, src.cuda);
    EXPECT_EQ(both().fetch(src.cuda_whole), host_values(src.cpu_whole)) << "zero, narrowed dimensions " << narrowed;
    both().clear();
  }
}

TEST_F(CudaDevice, CopiesBetweenHostAndDeviceAndZeroesHostMemory) {
  Ctx& ctx = both().cuda();
  const Shape shape{3, 1000};
  Buffer a = ctx.host.take("a", Category::kStaging, DType::kI32, shape),
         b = ctx.host.take("b", Category::kStaging, DType::kI32, shape);
  Buffer c = ctx.memory.take("c", Category::kStaging, DType::kI32, shape);
  const Tensor from = a.tensor(DType::kI32, shape), back = b.tensor(DType::kI32, shape),
               near = c.tensor(DType::kI32, shape);
  std::iota(from.as<int>(), from.as<int>() + from.size(), 1);
  ctx.device.copy(StreamKind::kToDevice, near, from);
  ctx.device.order(StreamKind::kToDevice, StreamKind::kToHost);
  ctx.device.copy(StreamKind::kToHost, back, near);
  ctx.device.synchronize();
  EXPECT_EQ(std::memcmp(from.raw(), back.raw(), static_cast<std::size_t>(from.bytes())), 0);

  ctx.device.zero(StreamKind::kCompute, back.slice(1, {10, 20}));
  ctx.device.order(StreamKind::kCompute, StreamKind::kToHost);
  ctx.device.copy(StreamKind::kToHost, from.rows(0, 1), back.rows(0, 1));  // host to host, behind the zeros
  ctx.device.synchronize();
  for (dim_t i = 0; i < 1000; ++i) EXPECT_EQ(from.as<int>()[i], 10 <= i && i < 20 ? 0 : i + 1) << i;
}

TEST_F(CudaDevice, ADistanceBeyondThe2DLimitIsCopiedRowByRow) {
  Backends large(5 * kGiB);
  Ctx& ctx = large.cuda();
  const dim_t pitch = (dim_t{1} << 31) + 256;  // bytes; the 2-D calls take less than 2^31
  const Tensor rows = large.take(ctx, DType::kU8, {2, pitch}).slice(1, {0, 100});
  const Tensor small = large.take(ctx, DType::kU8, {2, 100});
  Buffer host = ctx.host.take("host", Category::kStaging, 200);
  const Tensor staged = host.tensor(DType::kU8, {2, 100});
  for (int i = 0; i < 200; ++i) staged.as<std::uint8_t>()[i] = static_cast<std::uint8_t>(i);
  ctx.device.copy(StreamKind::kCompute, rows, staged);
  ctx.device.copy(StreamKind::kCompute, small, rows);
  ctx.device.zero(StreamKind::kCompute, rows.rows(0, 1));
  ctx.device.zero(StreamKind::kCompute, rows);
  ctx.device.copy(StreamKind::kCompute, staged.rows(0, 1), rows.rows(1, 2));
  ctx.device.synchronize();
  EXPECT_EQ(staged.as<std::uint8_t>()[99], 0);
  EXPECT_EQ(staged.as<std::uint8_t>()[100], 100);
  ctx.device.copy(StreamKind::kCompute, staged, small);
  ctx.device.synchronize();
  for (int i = 0; i < 200; ++i) EXPECT_EQ(staged.as<std::uint8_t>()[i], i) << i;
}

// A chain over all four streams, many times, with events that are released (and reused) at once.
TEST_F(CudaDevice, EventsOrderTheStreams) {
  Ctx& ctx = both().cuda();
  const Shape shape{4 * kMiB};
  const Tensor a = both().take(ctx, DType::kI32, shape), b = both().take(ctx, DType::kI32, shape);
  both().upload(a, [](dim_t i) { return static_cast<float>(i % 1000); });
  for (int round = 0; round < 50; ++round) {
    ctx.device.order(StreamKind::kCompute, StreamKind::kComm);
    ctx.device.zero(StreamKind::kComm, b);
    ctx.device.order(StreamKind::kComm, StreamKind::kToHost);
    ctx.device.copy(StreamKind::kToHost, b, a);
    ctx.device.order(StreamKind::kToHost, StreamKind::kToDevice);
    ctx.device.zero(StreamKind::kToDevice, a);
    ctx.device.order(StreamKind::kToDevice, StreamKind::kCompute);
    ctx.device.copy(StreamKind::kCompute, a, b);
  }
  const std::vector<double> values = both().fetch(a);
  for (std::size_t i = 0; i < values.size(); i += 997) ASSERT_EQ(values[i], static_cast<double>(i % 1000)) << i;
  const Event event = ctx.device.record(StreamKind::kCompute);
  EXPECT_TRUE(event.pending());
  EXPECT_GT(ctx.device.record(StreamKind::kCompute).sequence, event.sequence);
}

TEST_F(CudaDevice, RefusesWhatIsNotThere) {
  const auto device = make_cuda_device(0);
  EXPECT_EQ(device->reserve(MemoryKind::kDevice, 0), nullptr);
  const auto message = [&](MemoryKind kind, dim_t bytes) -> std::string {
    try {
      device->reserve(kind, bytes);
    } catch (const OutOfMemoryError& error) {
      return error.what();
    }
    return "";
  };
  const std::string of_device = message(MemoryKind::kDevice, dim_t{1} << 42),
                    of_host = message(MemoryKind::kHost, dim_t{1} << 50);
  EXPECT_NE(of_device.find("of device memory on GPU 0"), std::string::npos) << of_device;
  EXPECT_NE(of_host.find("of host memory"), std::string::npos) << of_host;
  device->synchronize();  // it still works
  EXPECT_THROW(require_cuda(cuda_device_count() + 1), DeviceError);
  EXPECT_NO_THROW(require_cuda(cuda_device_count()));
}

// -------------------------------------------------------------------------------------------------------------- small shapes

class CudaOps : public CudaTest {
 protected:
  // The op on both backends.
  template <class Run>
  void run(Run&& op) {
    op(both().cpu(), &Both::cpu);
    op(both().cuda(), &Both::cuda);
  }
};

// Conversions and sums of two are exact: the bits agree, also of infinities, ties and what is too small.
TEST_F(CudaOps, CastAndAdd) {
  const float special[] = {0.0f,    -0.0f,    1.00390625f, 1.01171875f,
                           3.4e38f, -3.4e38f, 1e-40f,      std::numeric_limits<float>::infinity(),
                           kNaN};
  const Draw draw = [&](dim_t i) { return i % 7 == 3 ? special[i / 7 % 9] : value(1, i); };
  for (const Case& c : cases()) {
    if (c.dtype == DType::kBF16) continue;
    for (DType from : {DType::kF32, DType::kBF16})
      for (DType to : {DType::kF32, DType::kBF16}) {
        SCOPED_TRACE(c.str() + name_of(from) + name_of(to));
        const Both src = both().make(from, {c.rows, c.columns}, draw, c.gap, true);
        const Both dst = both().make(to, {c.rows, c.columns}, constant(7), c.gap, true);
        const Both sum = both().make(to, {c.rows, c.columns}, uniform(2), c.gap, true);
        run([&](Ctx& ctx, auto t) {
          cast(ctx, dst.*t, src.*t);
          add(ctx, sum.*t, src.*t);
          add(ctx, sum.*t, sum.*t);
        });
        EXPECT_SAME(both(), dst, (Bound{0, 0}));
        EXPECT_SAME(both(), sum, (Bound{0, 0}));
        both().clear();
      }
  }
}

TEST_F(CudaOps, CastAndAddOfFourDimensions) {
  const Shape whole{3, 5, 6, 16};
  for (int narrowed = 0; narrowed < 16; ++narrowed) {
    Both src = both().make(DType::kF32, whole, uniform(1), 0, true),
         dst = both().make(DType::kBF16, whole, uniform(2), 0, true);
    for (int d = 0; d < 4; ++d)
      if (narrowed >> d & 1)
        for (auto t : {&Both::cpu, &Both::cuda}) {
          src.*t = (src.*t).slice(d, {1, whole[d]});
          dst.*t = (dst.*t).slice(d, {0, whole[d] - 1});
        }
    run([&](Ctx& ctx, auto t) {
      cast(ctx, dst.*t, src.*t);
      add(ctx, dst.*t, src.*t);
    });
    SCOPED_TRACE(narrowed);
    EXPECT_SAME(both(), dst, (Bound{0, 0}));
    both().clear();
  }
}

// In double: 1e-13 allows for a million terms added in another order.
TEST_F(CudaOps, SumOfSquares) {
  for (dim_t n : {1, 3, 113, 1023, 1025, 3 * 16384 + 5, 5'000'001})
    for (dim_t offset : {0, 1}) {
      const Both x = both().make(DType::kF32, {n + offset}, uniform(3));
      const Both sum = both().make(DType::kF64, {1}, constant(0.5f));
      run([&](Ctx& ctx, auto t) {
        sum_of_squares(ctx, sum.*t, (x.*t).rows(offset, n + offset));
        sum_of_squares(ctx, sum.*t, (x.*t).rows(offset, n + offset));
      });
      const double want = *sum.cpu.as<double>();
      EXPECT_NEAR(both().fetch(sum.cuda)[0], want, 1e-13 * want) << n << " from " << offset;
      const Tensor again = both().take(both().cuda(), DType::kF64, {2});
      zero(both().cuda(), again);
      for (int i : {0, 1}) sum_of_squares(both().cuda(), again.rows(i, i + 1), x.cuda.rows(offset, n + offset));
      EXPECT_EQ(both().fetch(again)[0], both().fetch(again)[1]) << n;
      both().clear();
    }
}

// Every pair of transposed operands, odd sizes and strides that rule out the library's wide loads, c of the operands' type and in
// fp32, written and added. K values below 2 in fp32, in another order: sqrt(K) roundings of 6e-8 relative to the largest.
TEST_F(CudaOps, Matmul) {
  struct Product {
    dim_t M, K, N;
  };
  const Product products[] = {{1, 1, 1},    {3, 1, 113},     {1, 113, 3},     {7, 17, 1025},
                              {64, 64, 64}, {113, 1023, 33}, {256, 512, 128}, {1025, 96, 200}};
  for (const Product& p : products)
    for (DType dtype : {DType::kF32, DType::kBF16})
      for (DType out : {DType::kF32, DType::kBF16}) {
        if (dtype == DType::kF32 && out == DType::kBF16) continue;
        for (dim_t gap : {0, 3, 16})
          for (int variant = 0; variant < 8; ++variant) {
            const MatmulOptions options{.transpose_a = (variant & 1) != 0,
                                        .transpose_b = (variant & 2) != 0,
                                        .accumulate = variant & 4 ? Accumulate::kAdd : Accumulate::kWrite};
            SCOPED_TRACE(format("{} to {}, {} x {} x {}, gap {}, variant {}", name_of(dtype), name_of(out), p.M, p.K,
                                p.N, gap, variant));
            const auto shape = [](bool transposed, dim_t rows, dim_t columns) {
              return transposed ? Shape{columns, rows} : Shape{rows, columns};
            };
            const Both a = both().make(dtype, shape(options.transpose_a, p.M, p.K), uniform(70), gap);
            const Both b = both().make(dtype, shape(options.transpose_b, p.K, p.N), uniform(71), gap);
            const Both c = both().make(out, {p.M, p.N},
                                       options.accumulate == Accumulate::kAdd ? uniform(72) : constant(kNaN), gap);
            run([&](Ctx& ctx, auto t) { matmul(ctx, c.*t, a.*t, b.*t, options); });
            // The library's kernels for c in bf16 round the product before they add it to what is there.
            const bool rounds_twice = out == DType::kBF16 && options.accumulate == Accumulate::kAdd;
            EXPECT_SAME(both(), c, bound(out, rounds_twice ? 1.0 / 256 : 2e-6));
            both().clear();
          }
      }
}

TEST_F(CudaOps, MatmulOfNothing) {
  const Both written = both().make(DType::kF32, {5, 7}, constant(3)),
             added = both().make(DType::kF32, {5, 7}, constant(3));
  run([&](Ctx& ctx, auto t) {
    const Tensor a(nullptr, DType::kF32, {5, 0}), b(nullptr, DType::kF32, {0, 7});
    matmul(ctx, written.*t, a, b);
    matmul(ctx, added.*t, a, b, {.accumulate = Accumulate::kAdd});
  });
  EXPECT_SAME(both(), written, (Bound{0, 0}));
  EXPECT_SAME(both(), added, (Bound{0, 0}));
}

// A weight gradient over two million rows of one value: bf16 sums would stall at 256, fp32 ones are exact.
TEST_F(CudaOps, MatmulSumsInFp32) {
  const dim_t rows = 1 << 21, columns = 8;
  const Both ones = both().make(DType::kBF16, {rows, columns}, constant(1)),
             c = both().make(DType::kF32, {columns, columns}, constant(1));
  matmul(both().cuda(), c.cuda, ones.cuda, ones.cuda, {.transpose_a = true, .accumulate = Accumulate::kAdd});
  EXPECT_EQ(both().fetch(c.cuda), std::vector<double>(columns * columns, static_cast<double>(rows + 1)));
}

// One addition in fp32; sums of up to 1025 values below 2 differ in order: 1e-6 of the largest is a dozen roundings.
TEST_F(CudaOps, Bias) {
  for (const Case& c : cases()) {
    SCOPED_TRACE(c.str());
    const Both y = both().make(c.dtype, {c.rows, c.columns}, uniform(4), c.gap);
    const Both bias = both().make(c.dtype, {c.columns}, uniform(5));
    const Both written = both().make(DType::kF32, {c.columns}, constant(kNaN)),
               added = both().make(DType::kF32, {c.columns}, uniform(6));
    run([&](Ctx& ctx, auto t) {
      bias_backward(ctx, written.*t, y.*t, Accumulate::kWrite);
      bias_backward(ctx, added.*t, y.*t, Accumulate::kAdd);
      add_bias(ctx, y.*t, bias.*t);
    });
    EXPECT_SAME(both(), y, bound(c.dtype, 1e-7));
    EXPECT_SAME(both(), written, bound(DType::kF32, 1e-6));
    EXPECT_SAME(both(), added, bound(DType::kF32, 1e-6));
    both().clear();
  }
}

TEST_F(CudaOps, BiasBackwardOfNoRows) {
  const Both written = both().make(DType::kF32, {100}, constant(3)),
             added = both().make(DType::kF32, {100}, constant(3));
  run([&](Ctx& ctx, auto t) {
    const Tensor none(nullptr, DType::kF32, {0, 100});
    bias_backward(ctx, written.*t, none, Accumulate::kWrite);
    bias_backward(ctx, added.*t, none, Accumulate::kAdd);
  });
  EXPECT_SAME(both(), written, (Bound{0, 0}));
  EXPECT_SAME(both(), added, (Bound{0, 0}));
}

// Forward moves bits. Backward adds the tokens in order on both backends: every bit agrees, also with few ids and one of them
// in most places. (bf16 gradients are added in fp32.)
TEST_F(CudaOps, Embedding) {
  for (const Case& c : cases())
    for (dim_t V : {1, 5, 1000}) {
      if (V > 1 && c.gap > 3) continue;
      SCOPED_TRACE(format("{}, {} ids", c.str(), V));
      const Both ids = both().make(DType::kI32, {c.rows}, [&](dim_t i) {
        return i % 3 == 0 ? 0.0f
                          : static_cast<float>(mix(static_cast<std::uint64_t>(i)) % static_cast<std::uint64_t>(V));
      });
      const Both table = both().make(c.dtype, {V, c.columns}, uniform(7), c.gap);
      const Both x = both().make(c.dtype, {c.rows, c.columns}, constant(kNaN), c.gap);
      const Both dx = both().make(c.dtype, {c.rows, c.columns}, uniform(8), c.gap);
      const Both dtable = both().make(DType::kF32, {V, c.columns}, uniform(9), c.gap);
      run([&](Ctx& ctx, auto t) {
        embedding_forward(ctx, x.*t, ids.*t, table.*t);
        embedding_backward(ctx, dtable.*t, ids.*t, dx.*t);
      });
      EXPECT_SAME(both(), x, (Bound{0, 0}));
      EXPECT_SAME(both(), dtable, (Bound{0, 0}));
      both().clear();
    }
}

// fp32: sums over a row in another order, a dozen roundings: 2e-6. dw: over all rows.
TEST_F(CudaOps, RmsNorm) {
  for (const Case& c : cases()) {
    SCOPED_TRACE(c.str());
    const auto make = [&](int seed) { return both().make(c.dtype, {c.rows, c.columns}, uniform(seed), c.gap); };
    const Both w = both().make(c.dtype, {c.columns}, uniform(10)), x = make(11), y = make(12), in_place = make(13),
               dy = make(14), dx = make(15);
    const Both written = both().make(DType::kF32, {c.columns}, constant(kNaN)),
               added = both().make(DType::kF32, {c.columns}, uniform(16));
    run([&](Ctx& ctx, auto t) {
      rmsnorm_forward(ctx, y.*t, x.*t, w.*t, 1e-5);
      rmsnorm_forward(ctx, in_place.*t, in_place.*t, w.*t, 1e-6);
      rmsnorm_backward(ctx, dx.*t, written.*t, dy.*t, x.*t, w.*t, 1e-5, Accumulate::kWrite);
    });
    EXPECT_SAME(both(), y, bound(c.dtype, 2e-6));
    EXPECT_SAME(both(), in_place, bound(c.dtype, 2e-6));
    EXPECT_SAME(both(), dx, bound(c.dtype, 2e-6));
    EXPECT_SAME(both(), written, bound(DType::kF32, 5e-6));
    const Both dx_again = make(15);
    run([&](Ctx& ctx, auto t) {
      rmsnorm_backward(ctx, dx_again.*t, added.*t, dy.*t, x.*t, w.*t, 1e-5, Accumulate::kAdd);
    });
    EXPECT_SAME(both(), added, bound(DType::kF32, 5e-6));
    EXPECT_EQ(both().fetch(dx_again.cuda), both().fetch(dx.cuda));  // and two runs agree by the bit
    both().clear();
  }
}

// Rows that do not fit a thread's registers, of one pack (16,384 in bf16, 8,192 in fp32) or four, and those read again.
TEST_F(CudaOps, RmsNormOfLongRows) {
  for (DType dtype : {DType::kF32, DType::kBF16})
    for (dim_t E : {1000, 8192, 8200, 16384, 16392, 32768, 40008})
      for (dim_t gap : {0, 1}) {
        SCOPED_TRACE(format("{} {} {}", name_of(dtype), E, gap));
        const auto make = [&](int seed) { return both().make(dtype, {70, E}, uniform(seed), gap); };
        const Both w = both().make(dtype, {E}, uniform(17)), x = make(18), y = make(19), dy = make(20), dx = make(21);
        const Both dw = both().make(DType::kF32, {E}, uniform(22));
        run([&](Ctx& ctx, auto t) {
          rmsnorm_forward(ctx, y.*t, x.*t, w.*t, 1e-5);
          rmsnorm_backward(ctx, dx.*t, dw.*t, dy.*t, x.*t, w.*t, 1e-5, Accumulate::kAdd);
        });
        EXPECT_SAME(both(), y, bound(dtype, 2e-6));
        EXPECT_SAME(both(), dx, bound(dtype, 2e-6));
        EXPECT_SAME(both(), dw, bound(DType::kF32, 5e-6));
        both().clear();
      }
}

TEST_F(CudaOps, RmsNormBackwardOfNoRows) {
  const Both w = both().make(DType::kF32, {100}, uniform(23));
  const Both written = both().make(DType::kF32, {100}, constant(3)),
             added = both().make(DType::kF32, {100}, constant(3));
  run([&](Ctx& ctx, auto t) {
    const Tensor none(nullptr, DType::kF32, {0, 100});
    rmsnorm_backward(ctx, none, written.*t, none, none, w.*t, 1e-5, Accumulate::kWrite);
    rmsnorm_backward(ctx, none, added.*t, none, none, w.*t, 1e-5, Accumulate::kAdd);
  });
  EXPECT_SAME(both(), written, (Bound{0, 0}));
  EXPECT_SAME(both(), added, (Bound{0, 0}));
}

// The exponential and the division are each good to two units: 1e-6 of values that reach some tens. The cpu's 1 - sigmoid of
// gates up to 20 cancels to 1e-7, times the gate: 3e-6 in the gradients.
TEST_F(CudaOps, SwiGlu) {
  for (const Case& c : cases()) {
    SCOPED_TRACE(c.str());
    const auto make = [&](int seed, float scale) {
      return both().make(c.dtype, {c.rows, c.columns}, uniform(seed, scale), c.gap);
    };
    const Both gate = make(24, 20), up = make(25, 2), y = make(26, 2), over_gate = make(24, 20), over_up = make(25, 2);
    const Both dgate = make(24, 20), dup = make(25, 2), dy = make(27, 2), dgate2 = make(24, 20), dup2 = make(25, 2),
               over_dy = make(27, 2), again = make(28, 1);
    run([&](Ctx& ctx, auto t) {
      swiglu_forward(ctx, y.*t, gate.*t, up.*t);
      swiglu_forward(ctx, over_gate.*t, over_gate.*t, up.*t);
      swiglu_forward(ctx, over_up.*t, gate.*t, over_up.*t);
      swiglu_backward(ctx, again.*t, dgate.*t, dup.*t, dy.*t);
      swiglu_backward(ctx, over_dy.*t, dgate2.*t, dup2.*t, over_dy.*t);
    });
    for (const Both* t : {&y, &over_gate, &over_up}) EXPECT_SAME(both(), *t, bound(c.dtype, 1e-6));
    for (const Both* t : {&again, &over_dy, &dgate, &dup, &dgate2, &dup2})
      EXPECT_SAME(both(), *t, bound(c.dtype, 3e-6));
    both().clear();
  }
}

TEST_F(CudaOps, SwiGluOfExtremeGates) {
  const float gates[] = {0, -0.0f, 1e-30f, 50, 88, 100, 1e4f, 3e38f, -50, -87, -88, -89, -100, -1e4f, -3e38f, 0.5f};
  const Both gate = both().make(DType::kF32, {16}, [&](dim_t i) { return gates[i]; });
  const Shape row{1, 16};
  const Both up = both().make(DType::kF32, {16}, constant(1)), y = both().make(DType::kF32, {16}, constant(0));
  run([&](Ctx& ctx, auto t) {
    swiglu_forward(ctx, (y.*t).reshape(row), (gate.*t).reshape(row), (up.*t).reshape(row));
  });
  const std::vector<double> got = both().fetch(y.cuda), want = host_values(y.cpu);
  for (std::size_t i = 0; i < got.size(); ++i)
    EXPECT_NEAR(got[i], want[i], 1e-6 * std::max(1.0, std::abs(want[i]))) << gates[i];
}

// Against exact values too: the phase must not lose anything at ten million.
TEST_F(CudaOps, RopeAngles) {
  const dim_t positions[] = {0, 1, 2, 1000, 99'999, 131'072, 1'048'575, 5'000'001, 8'388'609, 9'999'999, 10'000'000};
  for (dim_t F : {4, 20, 64, 128, 300})
    for (dim_t gap : {0, 3}) {
      std::vector<double> frequencies;
      for (dim_t f = 0; f < F; ++f)
        frequencies.push_back(std::pow(5e5, -static_cast<double>(f) / static_cast<double>(F)));
      for (dim_t R : {1, 3, 113, 1025}) {
        const auto position = [&](dim_t r) { return r < 11 ? positions[10 - r] : r * 9001; };
        const Both at = both().make(DType::kI32, {R}, constant(0));
        for (dim_t r = 0; r < R; ++r) at.cpu.as<std::int32_t>()[r] = static_cast<std::int32_t>(position(r));
        both().cuda().device.copy(StreamKind::kCompute, at.cuda, at.cpu);
        const Both cos = both().make(DType::kF32, {R, F}, constant(kNaN), gap),
                   sin = both().make(DType::kF32, {R, F}, constant(kNaN), gap);
        run([&](Ctx& ctx, auto t) { rope_angles(ctx, cos.*t, sin.*t, at.*t, frequencies); });
        SCOPED_TRACE(format("{} frequencies, {} positions", F, R));
        EXPECT_SAME(both(), cos, (Bound{0, 6e-7}));
        EXPECT_SAME(both(), sin, (Bound{0, 6e-7}));
        const std::vector<double> got_cos = both().fetch(cos.cuda), got_sin = both().fetch(sin.cuda);
        for (dim_t r = 0; r < R; ++r)
          for (dim_t f = 0; f < F; ++f) {
            const long double phase = static_cast<long double>(position(r)) * frequencies[static_cast<std::size_t>(f)];
            const auto i = static_cast<std::size_t>(r * F + f);
            ASSERT_NEAR(got_cos[i], static_cast<double>(std::cos(phase)), 3e-7) << position(r) << " " << f;
            ASSERT_NEAR(got_sin[i], static_cast<double>(std::sin(phase)), 3e-7) << position(r) << " " << f;
          }
        both().clear();
      }
    }
}

// Copies move bits; a rotation is two products and a sum, one of which may be fused: 3e-7 of values below 2.
TEST_F(CudaOps, Heads) {
  struct Exchange {
    dim_t heads;
    std::vector<int> source;
  };
  std::vector<int> many(600);  // more than travel with one launch
  for (int i = 0; i < 600; ++i) many[static_cast<std::size_t>(i)] = i * 7 % 300;
  const std::vector<Exchange> exchanges = {
      {1, {0}}, {4, {0, 1, 2, 3}}, {6, {5, 3, 1, 0, 2, 4}}, {3, {2, 0, 1, 1, 2, 2, 0}}, {300, many}};
  for (DType dtype : {DType::kF32, DType::kBF16})
    for (dim_t R : {1, 3, 113, 1025})
      for (dim_t D : {8, 40, 80, 128})
        for (const Exchange& e : exchanges)
          for (dim_t gap : {0, 3, 16})
            for (bool rotates : {false, true}) {
              if (e.heads == 300 && (R > 3 || gap == 16)) continue;
              SCOPED_TRACE(
                  format("{} R {} D {} heads {} gap {} rotates {}", name_of(dtype), R, D, e.heads, gap, rotates));
              const dim_t N = static_cast<dim_t>(e.source.size());
              const Both cos = both().make(
                  DType::kF32, {R, D / 2}, [](dim_t i) { return std::cos(static_cast<float>(i)); }, gap);
              const Both sin = both().make(
                  DType::kF32, {R, D / 2}, [](dim_t i) { return std::sin(static_cast<float>(i)); }, gap);
              const Both tokens = both().make(dtype, {R, e.heads * D}, uniform(30), gap),
                         heads = both().make(dtype, {N, R, D}, constant(kNaN), gap);
              const Both gradients = both().make(dtype, {N, R, D}, uniform(31), gap),
                         wide = both().make(DType::kF32, {N, R, D}, uniform(32), gap);
              const Both back = both().make(dtype, {R, e.heads * D}, constant(kNaN), gap),
                         back2 = both().make(dtype, {R, e.heads * D}, constant(kNaN), gap);
              run([&](Ctx& ctx, auto t) {
                const RopeAngles angles{cos.*t, sin.*t};
                heads_pack(ctx, heads.*t, tokens.*t, e.source, rotates ? &angles : nullptr);
                heads_unpack(ctx, back.*t, gradients.*t, e.source, rotates ? &angles : nullptr);
                heads_unpack(ctx, back2.*t, wide.*t, e.source, rotates ? &angles : nullptr);
              });
              EXPECT_SAME(both(), heads, (rotates ? bound(dtype, 3e-7) : Bound{0, 0}));
              EXPECT_SAME(both(), back, bound(dtype, 3e-7));
              EXPECT_SAME(both(), back2, bound(dtype, 3e-7));
              both().clear();
            }
}

// Exponentials to two units, sums of thousands in fp32 pieces; the loss of a row in double from those: 1e-6.
TEST_F(CudaOps, CrossEntropy) {
  struct Logits {
    const char* name;
    float scale, offset;
  };
  for (const Case& c : cases())
    for (const Logits& l : {Logits{"plain", 4, 0}, Logits{"far from zero", 4, 1000}, Logits{"decided", 60, 0}}) {
      if (c.gap > 3 && l.offset != 0) continue;
      for (double scale : {0.0, 1.0 / 37}) {
        SCOPED_TRACE(format("{} {} scale {}", c.str(), l.name, scale));
        const Both logits = both().make(
            c.dtype, {c.rows, c.columns}, [&](dim_t i) { return l.offset + value(33, i, l.scale); }, c.gap);
        const Both targets = both().make(DType::kI32, {c.rows}, [&](dim_t r) {
          return r % 4 == 2
                     ? -100.0f
                     : static_cast<float>(mix(static_cast<std::uint64_t>(r)) % static_cast<std::uint64_t>(c.columns));
        });
        const Both loss = both().make(DType::kF64, {1}, constant(0.25f));
        run([&](Ctx& ctx, auto t) { cross_entropy(ctx, loss.*t, logits.*t, targets.*t, scale); });
        const double want = *loss.cpu.as<double>();
        EXPECT_NEAR(both().fetch(loss.cuda)[0], want, 1e-6 * std::max(1.0, want));
        if (scale != 0) {
          // The largest gradient is near `scale`, so the absolute part is taken from there.
          const Bound of_gradient{c.dtype == DType::kBF16 ? kBF16Rounding : 0, 2e-6 * scale};
          EXPECT_SAME(both(), logits, of_gradient);
        }
        both().clear();
      }
    }
}

// Rows longer than shared memory, masked logits, and a vocabulary that no pack divides.
TEST_F(CudaOps, CrossEntropyOfLargeVocabularies) {
  for (DType dtype : {DType::kF32, DType::kBF16})
    for (dim_t V : {61, 32'000, 50'257, 128'256, 151'936, 262'144}) {
      SCOPED_TRACE(format("{} {}", name_of(dtype), V));
      const Draw draw = [&](dim_t i) { return i % V == 5 ? -std::numeric_limits<float>::infinity() : value(34, i, 8); };
      const Both logits = both().make(dtype, {11, V}, draw);
      const Both targets = both().make(DType::kI32, {11}, [&](dim_t r) {
        return r == 3 ? -1.0f : static_cast<float>((r * 7919 + 6) % V);
      });
      const Both loss = both().make(DType::kF64, {1}, constant(0));
      run([&](Ctx& ctx, auto t) { cross_entropy(ctx, loss.*t, logits.*t, targets.*t, 1.0); });
      EXPECT_NEAR(both().fetch(loss.cuda)[0], *loss.cpu.as<double>(), 1e-6 * *loss.cpu.as<double>());
      EXPECT_SAME(both(), logits, bound(dtype, 2e-6));
      both().clear();
    }
}

TEST_F(CudaOps, CrossEntropyShowsWhatIsNotANumber) {
  for (float bad : {kNaN, std::numeric_limits<float>::infinity()}) {
    const Both logits = both().make(DType::kF32, {3, 100}, [&](dim_t i) { return i == 150 ? bad : 1.0f; });
    const Both targets = both().make(DType::kI32, {3}, constant(1)), loss = both().make(DType::kF64, {1}, constant(0));
    cross_entropy(both().cuda(), loss.cuda, logits.cuda, targets.cuda, 1.0);
    EXPECT_FALSE(std::isfinite(both().fetch(loss.cuda)[0])) << bad;
    both().clear();
  }
  const Both logits = both().make(DType::kF32, {3, 100}, constant(1)),
             targets = both().make(DType::kI32, {3}, constant(100));
  const Both loss = both().make(DType::kF64, {1}, constant(0));
  cross_entropy(both().cuda(), loss.cuda, logits.cuda, targets.cuda, 1.0);
  EXPECT_TRUE(std::isnan(both().fetch(loss.cuda)[0]));
}

// Some ten roundings a step, five steps: 2e-6. Off packs too.
TEST_F(CudaOps, AdamW) {
  for (DType dtype : {DType::kF32, DType::kBF16})
    for (dim_t n : {1, 3, 113, 1023, 1025, 4096, 1'000'003})
      for (dim_t offset : {0, 1})
        for (bool is_master : {false, true}) {
          if (is_master && dtype != DType::kF32) continue;
          SCOPED_TRACE(format("{} {} from {} {}", name_of(dtype), n, offset, is_master));
          const auto make = [&](DType d, const Draw& draw) { return both().make(d, {n + offset}, draw); };
          const Both working = make(dtype, constant(0)), master = make(DType::kF32, uniform(40)),
                     grad = make(DType::kF32, uniform(41));
          const Both m = make(DType::kF32, constant(0)), v = make(DType::kF32, constant(0));
          run([&](Ctx& ctx, auto t) {
            const auto part = [&](const Both& b) { return (b.*t).rows(offset, n + offset); };
            for (dim_t step = 1; step <= 5; ++step)
              adamw(ctx, part(is_master ? master : working), part(master), part(m), part(v), part(grad),
                    {.lr = 1e-2, .weight_decay = 0.1, .gradient_scale = 0.37, .step = step});
          });
          for (const Both* t : {&master, &m, &v}) EXPECT_SAME(both(), *t, bound(DType::kF32, 2e-6));
          if (!is_master) {
            EXPECT_SAME(both(), working, bound(dtype, 2e-6));
          }
          both().clear();
        }
}

// --------------------------------------------------------------------------------------------------------------- large shapes

// Beyond 2^31 bytes (262,144 rows of 4,096 in bf16) and 2^31 elements. Rows repeat with a prime period, so an index that wraps
// lands on another row. Ops that work row by row give the period's result again and again, by the bit; the first period is
// compared with the cpu.
class CudaOpsSlow : public CudaTest {
 protected:
  static constexpr dim_t kPeriod = 1009;

  // Skips where the GPU has less memory.
  std::unique_ptr<Backends> large(dim_t device_bytes) {
    try {
      return std::make_unique<Backends>(device_bytes);
    } catch (const OutOfMemoryError& error) {
      skipped_ = error.what();
      return nullptr;
    }
  }
  // The dimension 0 that passes each of the two limits with rows of `columns` elements.
  static std::vector<dim_t> beyond(dim_t columns, DType dtype) {
    const dim_t bytes = dim_t{1} << 31;
    return {bytes / static_cast<dim_t>(size_of(dtype)) / columns + 3, bytes / columns + 3};
  }

  // A device tensor whose row r (of dimension `dim`) is row r % period of the result's first period, which has values on both.
  struct Periodic {
    Both first;    // [period, columns]
    Tensor whole;  // on the device
  };
  static Periodic periodic(Backends& b, DType dtype, dim_t rows, dim_t columns, const Draw& draw,
                           dim_t period = kPeriod) {
    Periodic p{b.make(dtype, {period, columns}, draw), b.take(b.cuda(), dtype, {rows, columns})};
    repeat(b, p.whole, p.first.cuda);
    return p;
  }
  static void repeat(Backends& b, const Tensor& whole, const Tensor& first) {
    const dim_t rows = whole.dim(0);
    Device& device = b.cuda().device;
    dim_t filled = std::min(first.dim(0), rows);
    device.copy(StreamKind::kCompute, whole.rows(0, filled), first.rows(0, filled));
    while (filled < rows) {
      const dim_t more = std::min(filled, rows - filled);
      device.copy(StreamKind::kCompute, whole.rows(filled, filled + more), whole.rows(0, more));
      filled += more;
    }
    device.synchronize();
  }
  // How often row r of the period occurs.
  static double times(dim_t rows, dim_t r, dim_t period = kPeriod) {
    return static_cast<double>((rows - r + period - 1) / period);
  }

  // Whether all rows along `dim` repeat the first period.
  static testing::AssertionResult repeats(Backends& b, const Tensor& t, int dim = 0, dim_t period = kPeriod) {
    const std::vector<std::byte> first = b.fetch_bytes(t.slice(dim, {0, period}));
    for (dim_t begin = period; begin < t.dim(dim); begin += period) {
      const dim_t end = std::min(begin + period, t.dim(dim));
      if (end - begin < period && dim != 0) {  // the last, short one is not the first's beginning in memory
        const std::vector<std::byte> short_first = b.fetch_bytes(t.slice(dim, {0, end - begin}));
        if (b.fetch_bytes(t.slice(dim, {begin, end})) != short_first)
          return testing::AssertionFailure() << "rows from " << begin;
        continue;
      }
      const std::vector<std::byte> next = b.fetch_bytes(t.slice(dim, {begin, end}));
      if (std::memcmp(next.data(), first.data(), next.size()) != 0)
        return testing::AssertionFailure() << "rows from " << begin;
    }
    return testing::AssertionSuccess();
  }
  // The large result against the cpu's first period.
  static void expect_periodic(Backends& b, const Tensor& whole, const Tensor& want_cpu, Bound bound) {
    EXPECT_TRUE(within(bound, b.fetch(whole.rows(0, want_cpu.dim(0))), host_values(want_cpu)));
    EXPECT_TRUE(repeats(b, whole, 0, want_cpu.dim(0)));
  }

  std::string skipped_;
};
#define LARGE(name, bytes)                     \
  const auto name##_owner = large(bytes);      \
  if (!name##_owner) GTEST_SKIP() << skipped_; \
  Backends& name = *name##_owner

constexpr dim_t kE = 4096;

TEST_F(CudaOpsSlow, CastAndAdd) {
  LARGE(b, 28 * kGiB);
  for (dim_t rows : beyond(kE, DType::kBF16)) {
    const Periodic wide = periodic(b, DType::kF32, rows, kE, uniform(1));
    const Periodic narrow = periodic(b, DType::kBF16, rows, kE, uniform(2));
    cast(b.cuda(), narrow.whole, wide.whole);
    cast(b.cpu(), narrow.first.cpu, wide.first.cpu);  // fp32 here
    expect_periodic(b, narrow.whole, narrow.first.cpu, bound(DType::kBF16, 0));
    repeat(b, narrow.whole, narrow.first.cuda);  // as it was
    add(b.cuda(), wide.whole, narrow.whole);
    const Both again = b.make(DType::kBF16, {kPeriod, kE}, uniform(2));
    add(b.cpu(), wide.first.cpu, again.cpu);
    expect_periodic(b, wide.whole, wide.first.cpu, {0, 0});
    // Strided: every row's first half into its second.
    cast(b.cuda(), wide.whole.slice(1, {kE / 2, kE}), wide.whole.slice(1, {0, kE / 2}));
    cast(b.cpu(), wide.first.cpu.slice(1, {kE / 2, kE}), wide.first.cpu.slice(1, {0, kE / 2}));
    expect_periodic(b, wide.whole, wide.first.cpu, {0, 0});
    b.clear();
  }
}

TEST_F(CudaOpsSlow, SumOfSquares) {
  LARGE(b, 10 * kGiB);
  for (dim_t rows : beyond(kE, DType::kF32)) {
    const Periodic x = periodic(b, DType::kF32, rows, kE, uniform(3));
    const Both sum = b.make(DType::kF64, {1}, constant(0));
    sum_of_squares(b.cuda(), sum.cuda, x.whole);
    double want = 0;
    for (dim_t r = 0; r < kPeriod; ++r)
      for (dim_t e = 0; e < kE; ++e)
        want += times(rows, r) * std::pow(static_cast<double>(x.first.cpu.f32()[r * kE + e]), 2);
    EXPECT_NEAR(b.fetch(sum.cuda)[0], want, 1e-11 * want);
    b.clear();
  }
}

// Logits of 128,256 columns pass 2^31 bytes at 8,372 rows and 2^31 elements at 16,744: rows of c repeat where a's do. The first
// period against the cpu, the rest by the bit.
TEST_F(CudaOpsSlow, Matmul) {
  constexpr dim_t kV = 128256, kK = 64, kPeriodRows = 64;
  LARGE(b, 26 * kGiB);
  for (dim_t rows : beyond(kV, DType::kBF16)) {
    const dim_t M = round_up(rows, kPeriodRows);
    const Periodic a = periodic(b, DType::kBF16, M, kK, uniform(60), kPeriodRows);
    const Both w = b.make(DType::kBF16, {kV, kK}, uniform(61));
    const Tensor logits = b.take(b.cuda(), DType::kBF16, {M, kV});
    matmul(b.cuda(), logits, a.whole, w.cuda, {.transpose_b = true});
    const Tensor want = b.take(b.cpu(), DType::kF32, {kPeriodRows, kV});
    matmul(b.cpu(), want, a.first.cpu, w.cpu, {.transpose_b = true});
    expect_periodic(b, logits, want, bound(DType::kBF16, 2e-6));
    // The large one as an operand, summed over its rows and over its columns.
    const Tensor dw = b.take(b.cuda(), DType::kF32, {kV, kK});
    matmul(b.cuda(), dw, logits, a.whole, {.transpose_a = true});
    const Tensor dx = b.take(b.cuda(), DType::kBF16, {M, kK});
    matmul(b.cuda(), dx, logits, w.cuda);
    EXPECT_TRUE(repeats(b, dx, 0, kPeriodRows));
    const std::vector<double> l = b.fetch(logits.rows(0, kPeriodRows)), first = b.fetch(a.whole.rows(0, kPeriodRows)),
                              got = b.fetch(dw);
    for (dim_t v : {dim_t{0}, dim_t{1}, kV / 2, kV - 1})
      for (dim_t k = 0; k < kK; ++k) {
        double sum = 0, size = 0;
        for (dim_t r = 0; r < kPeriodRows; ++r) {
          const double term = l[static_cast<std::size_t>(r * kV + v)] * first[static_cast<std::size_t>(r * kK + k)];
          sum += term, size += std::abs(term);
        }
        const double copies = static_cast<double>(M / kPeriodRows);
        // Tensor cores cut sums off where fp32 ends: the same terms over and over come out small by 2^-24 an addition.
        EXPECT_NEAR(got[static_cast<std::size_t>(v * kK + k)], copies * sum, 1e-4 * copies * size) << v << ", " << k;
      }
    b.clear();
  }
}

TEST_F(CudaOpsSlow, Bias) {
  LARGE(b, 6 * kGiB);
  for (dim_t rows : beyond(kE, DType::kBF16)) {
    const Periodic y = periodic(b, DType::kBF16, rows, kE, uniform(4));
    const Both bias = b.make(DType::kBF16, {kE}, uniform(5)), dbias = b.make(DType::kF32, {kE}, constant(0));
    bias_backward(b.cuda(), dbias.cuda, y.whole, Accumulate::kWrite);
    std::vector<double> want(kE, 0.0);
    for (dim_t r = 0; r < kPeriod; ++r)
      for (dim_t e = 0; e < kE; ++e)
        want[static_cast<std::size_t>(e)] += times(rows, r) * y.first.cpu.f32()[r * kE + e];
    // Of half a million terms, summed in 256 groups: partial sums reach a few thousand, at 6e-8 each time.
    EXPECT_TRUE(within({0, 1e-4}, b.fetch(dbias.cuda), want));
    add_bias(b.cuda(), y.whole, bias.cuda);
    add_bias(b.cpu(), y.first.cpu, bias.cpu);
    expect_periodic(b, y.whole, y.first.cpu, bound(DType::kBF16, 1e-7));
    b.clear();
  }
}

TEST_F(CudaOpsSlow, Embedding) {
  LARGE(b, 14 * kGiB);
  for (dim_t rows : beyond(kE, DType::kBF16)) {
    const dim_t V = rows;
    const auto id = [&](dim_t r) {
      return (r % kPeriod) * (V - 1) / (kPeriod - 1);
    };  // the first and the last among them
    const Tensor ids = b.take(b.cuda(), DType::kI32, {rows});
    {
      const Both few = b.make(DType::kI32, {rows}, constant(0));
      for (dim_t r = 0; r < rows; ++r) few.cpu.as<std::int32_t>()[r] = static_cast<std::int32_t>(id(r));
      b.cuda().device.copy(StreamKind::kCompute, ids, few.cpu);
    }
    const Periodic table = periodic(b, DType::kBF16, V, kE, uniform(7));
    const Tensor x = b.take(b.cuda(), DType::kBF16, {rows, kE});
    embedding_forward(b.cuda(), x, ids, table.whole);
    std::vector<double> want;
    for (dim_t r = 0; r < kPeriod; ++r)
      for (dim_t e = 0; e < kE; ++e) want.push_back(table.first.cpu.f32()[id(r) % kPeriod * kE + e]);
    EXPECT_EQ(b.fetch(x.rows(0, kPeriod)), want);
    EXPECT_TRUE(repeats(b, x));
    b.clear();
  }
  // Multiples of 1/8, whose sums are exact.
  const dim_t rows = beyond(kE, DType::kBF16)[1], V = rows;  // of fp32: beyond 2^33 bytes
  const auto id = [&](dim_t r) { return (r % kPeriod) * (V - 1) / (kPeriod - 1); };
  const Both ids = b.make(DType::kI32, {rows}, constant(0));
  for (dim_t r = 0; r < rows; ++r) ids.cpu.as<std::int32_t>()[r] = static_cast<std::int32_t>(id(r));
  b.cuda().device.copy(StreamKind::kCompute, ids.cuda, ids.cpu);
  const Periodic dx = periodic(b, DType::kBF16, rows, kE, [](dim_t i) { return std::round(8 * value(8, i)) / 8; });
  const Tensor dtable = b.take(b.cuda(), DType::kF32, {V, kE});
  zero(b.cuda(), dtable);
  embedding_backward(b.cuda(), dtable, ids.cuda, dx.whole);
  for (dim_t r = 0; r < kPeriod; ++r) {
    std::vector<double> want(kE);
    for (dim_t e = 0; e < kE; ++e) want[static_cast<std::size_t>(e)] = times(rows, r) * dx.first.cpu.f32()[r * kE + e];
    ASSERT_EQ(b.fetch(dtable.index(id(r))), want) << id(r);
    if (r == 0) continue;
    ASSERT_EQ(b.fetch(dtable.index(id(r) - 1)), std::vector<double>(kE, 0.0)) << "beside " << id(r);
  }
}

TEST_F(CudaOpsSlow, RmsNorm) {
  LARGE(b, 18 * kGiB);
  for (dim_t rows : beyond(kE, DType::kBF16)) {
    const Periodic x = periodic(b, DType::kBF16, rows, kE, uniform(11)),
                   dy = periodic(b, DType::kBF16, rows, kE, uniform(12));
    const Periodic dx = periodic(b, DType::kBF16, rows, kE, uniform(13));
    const Both w = b.make(DType::kBF16, {kE}, uniform(10)), dw = b.make(DType::kF32, {kE}, constant(0));
    rmsnorm_backward(b.cuda(), dx.whole, dw.cuda, dy.whole, x.whole, w.cuda, 1e-5, Accumulate::kWrite);
    std::vector<double> want(kE, 0.0);
    for (dim_t r = 0; r < kPeriod; ++r) {
      const float *const x_E = x.first.cpu.f32() + r * kE, *const dy_E = dy.first.cpu.f32() + r * kE;
      double squares = 0;
      for (dim_t e = 0; e < kE; ++e) squares += static_cast<double>(x_E[e]) * x_E[e];
      const double inverse = 1 / std::sqrt(squares / kE + 1e-5);
      for (dim_t e = 0; e < kE; ++e) want[static_cast<std::size_t>(e)] += times(rows, r) * dy_E[e] * x_E[e] * inverse;
    }
    EXPECT_TRUE(within({0, 1e-4}, b.fetch(dw.cuda), want));  // 256 sums of two thousand rows each
    rmsnorm_backward(b.cpu(), dx.first.cpu, dw.cpu, dy.first.cpu, x.first.cpu, w.cpu, 1e-5, Accumulate::kWrite);
    expect_periodic(b, dx.whole, dx.first.cpu, bound(DType::kBF16, 2e-6));
    rmsnorm_forward(b.cuda(), dy.whole, x.whole, w.cuda, 1e-5);
    rmsnorm_forward(b.cpu(), dy.first.cpu, x.first.cpu, w.cpu, 1e-5);
    expect_periodic(b, dy.whole, dy.first.cpu, bound(DType::kBF16, 2e-6));
    b.clear();
  }
}

TEST_F(CudaOpsSlow, SwiGlu) {
  LARGE(b, 20 * kGiB);
  constexpr dim_t kF = 14336, kShort = 251;
  for (dim_t rows : beyond(kF, DType::kBF16)) {
    const auto make = [&](int seed) { return periodic(b, DType::kBF16, rows, kF, uniform(seed, 4), kShort); };
    const Periodic gate = make(24), up = make(25), y = make(26);
    swiglu_forward(b.cuda(), y.whole, gate.whole, up.whole);
    const Both dy = b.make(DType::kBF16, {kShort, kF}, uniform(26, 4));
    swiglu_forward(b.cpu(), y.first.cpu, gate.first.cpu, up.first.cpu);
    expect_periodic(b, y.whole, y.first.cpu, bound(DType::kBF16, 1e-6));
    repeat(b, y.whole, dy.cuda);
    swiglu_backward(b.cuda(), y.whole, gate.whole, up.whole, y.whole);
    swiglu_backward(b.cpu(), dy.cpu, gate.first.cpu, up.first.cpu, dy.cpu);
    for (const auto& [whole, want] :
         {std::pair(y.whole, dy.cpu), {gate.whole, gate.first.cpu}, {up.whole, up.first.cpu}})
      expect_periodic(b, whole, want, bound(DType::kBF16, 3e-6));
    b.clear();
  }
}

TEST_F(CudaOpsSlow, RopeAnglesAndHeads) {
  LARGE(b, 20 * kGiB);
  {
    constexpr dim_t kF = 64;
    std::vector<double> frequencies;
    for (dim_t f = 0; f < kF; ++f) frequencies.push_back(std::pow(5e5, -static_cast<double>(f) / kF));
    for (dim_t R : beyond(kF, DType::kF32)) {
      const Periodic at = periodic(b, DType::kI32, R, 1, [](dim_t i) { return static_cast<float>(i * 9001); });
      const Tensor cos = b.take(b.cuda(), DType::kF32, {R, kF}), sin = b.take(b.cuda(), DType::kF32, {R, kF});
      rope_angles(b.cuda(), cos, sin, at.whole.flat(), frequencies);
      const Both first_cos = b.make(DType::kF32, {kPeriod, kF}, constant(0)),
                 first_sin = b.make(DType::kF32, {kPeriod, kF}, constant(0));
      rope_angles(b.cpu(), first_cos.cpu, first_sin.cpu, at.first.cpu.flat(), frequencies);
      expect_periodic(b, cos, first_cos.cpu, {0, 6e-7});
      expect_periodic(b, sin, first_sin.cpu, {0, 6e-7});
      b.clear();
    }
  }
  constexpr dim_t kD = 128, kHeads = kE / kD;
  std::vector<int> source(kHeads);
  for (int n = 0; n < kHeads; ++n) source[static_cast<std::size_t>(n)] = n * 5 % static_cast<int>(kHeads);
  for (dim_t R : beyond(kE, DType::kBF16)) {
    const Periodic tokens = periodic(b, DType::kBF16, R, kE, uniform(30));
    const Periodic cos = periodic(b, DType::kF32, R, kD / 2, [](dim_t i) { return std::cos(static_cast<float>(i)); });
    const Periodic sin = periodic(b, DType::kF32, R, kD / 2, [](dim_t i) { return std::sin(static_cast<float>(i)); });
    const Tensor heads = b.take(b.cuda(), DType::kBF16, {kHeads, R, kD});
    const Both first = b.make(DType::kBF16, {kHeads, kPeriod, kD}, constant(0));
    const RopeAngles angles{cos.whole, sin.whole}, first_angles{cos.first.cpu, sin.first.cpu};
    heads_pack(b.cuda(), heads, tokens.whole, source, &angles);
    heads_pack(b.cpu(), first.cpu, tokens.first.cpu, source, &first_angles);
    EXPECT_TRUE(within(bound(DType::kBF16, 3e-7), b.fetch(heads.slice(1, {0, kPeriod})), host_values(first.cpu)));
    EXPECT_TRUE(repeats(b, heads, 1));
    // Back: what was rounded to bf16 on the way is off by that, of values up to 3, and rounded once more.
    zero(b.cuda(), tokens.whole);
    heads_unpack(b.cuda(), tokens.whole, heads, source, &angles);
    expect_periodic(b, tokens.whole, tokens.first.cpu, {2.0 / 256, 2.0 / 256});
    b.clear();
  }
}

TEST_F(CudaOpsSlow, CrossEntropy) {
  LARGE(b, 6 * kGiB);
  constexpr dim_t kV = 128'256, kShort = 101;
  for (dim_t R : beyond(kV, DType::kBF16)) {
    const Periodic logits = periodic(b, DType::kBF16, R, kV, uniform(33, 8), kShort);
    const auto target = [](dim_t r) { return r % 7 == 3 ? -100.0f : static_cast<float>((r * 7919 + 5) % kV); };
    const Periodic targets = periodic(b, DType::kI32, R, 1, target, kShort);
    const Both loss = b.make(DType::kF64, {1}, constant(0));
    // Gradients near 1, so that the bound for fp32's part of the error stays small beside bf16's.
    cross_entropy(b.cuda(), loss.cuda, logits.whole, targets.whole.flat(), 1.0);
    double want = 0;
    for (dim_t r = 0; r < kShort; ++r) {
      *loss.cpu.as<double>() = 0;
      cross_entropy(b.cpu(), loss.cpu, logits.first.cpu.rows(r, r + 1), targets.first.cpu.flat().rows(r, r + 1), 1.0);
      want += times(R, r, kShort) * *loss.cpu.as<double>();
    }
    EXPECT_NEAR(b.fetch(loss.cuda)[0], want, 1e-6 * want);
    expect_periodic(b, logits.whole, logits.first.cpu, bound(DType::kBF16, 2e-6));
    b.clear();
  }
}

TEST_F(CudaOpsSlow, AdamW) {
  LARGE(b, 40 * kGiB);
  const AdamWStep step{.lr = 1e-2, .weight_decay = 0.1, .gradient_scale = 0.37, .step = 3};
  for (dim_t rows : beyond(kE, DType::kF32)) {
    const auto make = [&](DType dtype, int seed) {
      return periodic(b, dtype, rows, kE, [=](dim_t i) { return std::abs(value(seed, i)); });
    };
    const Periodic working = make(DType::kBF16, 40), master = make(DType::kF32, 41), m = make(DType::kF32, 42),
                   v = make(DType::kF32, 43), grad = make(DType::kF32, 44);
    adamw(b.cuda(), working.whole.flat(), master.whole.flat(), m.whole.flat(), v.whole.flat(), grad.whole.flat(), step);
    adamw(b.cpu(), working.first.cpu.flat(), master.first.cpu.flat(), m.first.cpu.flat(), v.first.cpu.flat(),
          grad.first.cpu.flat(), step);
    expect_periodic(b, working.whole, working.first.cpu, bound(DType::kBF16, 2e-6));
    for (const Periodic* t : {&master, &m, &v}) expect_periodic(b, t->whole, t->first.cpu, bound(DType::kF32, 2e-6));
    b.clear();
  }
}

}  // namespace
}  // namespace untied::test

#endif  // UNTIED_HAS_CUDA
