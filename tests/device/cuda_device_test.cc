// The cuda device: copies, zeros and order between streams, against the cpu device where both can do it. It comes before the ops: a
// test of an op means nothing if copies are wrong.
#ifdef UNTIED_HAS_CUDA

#include <gtest/gtest.h>

#include <cstring>
#include <numeric>
#include <string>
#include <vector>

#include "device/cuda.h"
#include "support/backends.h"
#include "support/cuda.h"

namespace untied::test {
namespace {

class CudaDevice : public BothBackendsTest {};

TEST_F(CudaDevice, CopiesEveryMixOfStrides) {
  const Shape whole{4, 5, 6, 7};
  for (int narrowed = 0; narrowed < 16; ++narrowed) {
    OnBoth src = both().make(DType::kI32, whole, [](dim_t i) { return static_cast<float>(i + 1); });
    OnBoth dst = both().make(DType::kI32, whole, constant(0));
    for (int d = 0; d < 4; ++d)
      if (narrowed >> d & 1)
        for (auto t : {&OnBoth::cpu, &OnBoth::cuda}) {
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
  LARGE(b, 5 * kGiB);
  Device& device = b.cuda().device;
  constexpr dim_t kColumns = 100;
  constexpr dim_t kPitch = (dim_t{1} << 29) + 64;  // 2^31 + 256 bytes; the 2-D calls take less than 2^31
  const Tensor apart = b.take(b.cuda(), DType::kI32, {2, kPitch}).slice(1, {0, kColumns});
  const Tensor together = b.take(b.cuda(), DType::kI32, {2, kColumns});
  const auto value = [](dim_t i) { return static_cast<float>(i + 1); };
  std::vector<double> row0(kColumns), row1(kColumns);
  std::iota(row0.begin(), row0.end(), 1), std::iota(row1.begin(), row1.end(), 1 + kColumns);
  const std::vector<double> zeros(kColumns, 0.0);
  // Each row by itself, where no distance counts: a wrong one cannot undo itself on the way back.
  const auto expect_apart = [&](const std::vector<double>& want0, const std::vector<double>& want1, const char* after) {
    EXPECT_EQ(b.fetch(apart.rows(0, 1)), want0) << "row 0 after " << after;
    EXPECT_EQ(b.fetch(apart.rows(1, 2)), want1) << "row 1 after " << after;
  };

  b.upload(apart, value);
  expect_apart(row0, row1, "a copy from the host");
  device.copy(StreamKind::kCompute, together, apart);
  EXPECT_EQ(b.fetch(together.rows(0, 1)), row0);
  EXPECT_EQ(b.fetch(together.rows(1, 2)), row1);
  EXPECT_EQ(b.fetch(apart), b.fetch(together)) << "a copy to the host";

  device.zero(StreamKind::kCompute, apart.rows(0, 1));
  expect_apart(zeros, row1, "a zero of row 0");
  device.copy(StreamKind::kCompute, apart, together);
  expect_apart(row0, row1, "a copy on the device");
  device.zero(StreamKind::kCompute, apart);
  expect_apart(zeros, zeros, "a zero of both");
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

}  // namespace
}  // namespace untied::test

#endif  // UNTIED_HAS_CUDA
