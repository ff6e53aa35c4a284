// What tests of the cuda backend share: the same tensors on the cpu and on a GPU, how far the two may differ.
// Of src it knows the devices and their memory, no op: tests of the device use it too.
//
// The cpu computes in fp32 only. For a bf16 op it is given the same bf16 values, widened, and the results differ by the one
// rounding of what the kernel stores.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "device/cuda.h"
#include "memory/context.h"

namespace untied::test {

inline constexpr dim_t kMiB = dim_t{1} << 20, kGiB = dim_t{1} << 30;

// ------------------------------------------------------------------------------------------------------------------- values

// Functions of (seed, i) alone: element i of a large tensor is known without those before it.
std::uint64_t random_bits(std::uint64_t seed, dim_t i);
float uniform_at(std::uint64_t seed, dim_t i, float scale = 2);  // in [-scale, scale)

// What an element is, by its number.
using ValueAt = std::function<float(dim_t)>;
ValueAt uniform(std::uint64_t seed, float scale = 2);
ValueAt constant(double x);

// ------------------------------------------------------------------------------------------------------------ the comparison

// |got - want| <= relative |want| + absolute max(1, largest |want|), element by element.
struct Bound {
  double relative, absolute;
};
// What bf16 storage adds: half a unit in the last place, 2^-8, and 2^-6 of that for values near the middle of two.
inline constexpr double kBF16Rounding = 1.02 / 256;
// For results that are right to `fp32` (of the largest) before they are stored.
Bound bound_of(DType stored, double fp32);

// Where both are NaN, or the same infinity, all is well: both sides had the same inputs. (For near_all NaN is untouched memory.)
testing::AssertionResult within(Bound bound, const std::vector<double>& got, const std::vector<double>& want);

// --------------------------------------------------------------------------------------------------------------- two backends

// A tensor on both backends. `whole`: with what lies around it, which holds NaN (or 0) and is nobody's.
struct OnBoth {
  Tensor cpu, cuda, cpu_whole, cuda_whole;
};

struct MakeOptions {
  dim_t gap = 0;                // rows are so many elements apart, the tensor begins gap / 2 into the first
  bool cpu_keeps_bf16 = false;  // for ops whose cpu backend takes bf16; otherwise the cpu's copy is fp32
};

// One rank on each backend. Tensors live until the next clear().
class BothBackends {
 public:
  explicit BothBackends(dim_t device_bytes = kGiB);

  Ctx& cpu() { return cpu_.ctx(); }
  Ctx& cuda() { return cuda_.ctx(); }
  void clear() { buffers_.clear(); }

  Tensor take(Ctx& ctx, DType dtype, const Shape& shape);
  // value(i) for element i, rounded to dtype, on both.
  OnBoth make(DType dtype, const Shape& shape, const ValueAt& value, const MakeOptions& options = {});

  void upload(const Tensor& to, const ValueAt& value);
  // A device tensor, on the host and contiguous.
  std::vector<double> fetch(const Tensor& t);
  std::vector<std::byte> fetch_bytes(const Tensor& t);

  // Whether the GPU's is within `bound` of the cpu's; the whole of it, so that what lies between the rows counts too.
  testing::AssertionResult agree(const OnBoth& t, Bound bound);

 private:
  struct Staged {
    Buffer buffer;
    Tensor tensor;
  };
  Staged stage(DType dtype, const Shape& shape);
  Staged staged_copy(const Tensor& t);

  RankMemory cpu_, cuda_;
  std::vector<Buffer> buffers_;
};

// Skips where there is no GPU.
class CudaTest : public testing::Test {
 protected:
  void SetUp() override;
};

// For tests that have the two backends do the same.
class BothBackendsTest : public CudaTest {
 protected:
  BothBackends& both();  // made when first asked for
  // Others, with so much device memory. Null where the GPU has less: too_large_ then says so.
  std::unique_ptr<BothBackends> large(dim_t device_bytes);

  std::string too_large_;

 private:
  std::optional<BothBackends> both_;
};
// BothBackends& `name` from large(); skips the test where there is none.
#define LARGE(name, device_bytes)                \
  const auto name##_owner = large(device_bytes); \
  if (!name##_owner) GTEST_SKIP() << too_large_; \
  BothBackends& name = *name##_owner

}  // namespace untied::test
