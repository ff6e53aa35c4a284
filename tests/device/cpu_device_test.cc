#include "device/cpu.h"

#include <gtest/gtest.h>

#include <numeric>
#include <vector>

namespace untied {
namespace {

std::vector<int> counted(dim_t n) {
  std::vector<int> values(n);
  std::iota(values.begin(), values.end(), 1);
  return values;
}

Tensor view(std::vector<int>& values, const Shape& shape) { return Tensor(values.data(), DType::kI32, shape); }

TEST(CpuDevice, CopiesEveryMixOfStrides) {
  auto device = make_cpu_device({});
  // [4, 5, 6, 7] narrowed in each subset of its dimensions, against loops over all indices.
  const Shape whole{4, 5, 6, 7};
  for (int narrowed = 0; narrowed < 16; ++narrowed) {
    std::vector<int> from = counted(whole.size()), to(whole.size(), 0), expected(whole.size(), 0);
    Tensor src = view(from, whole), dst = view(to, whole);
    for (int d = 0; d < 4; ++d)
      if (narrowed >> d & 1) {
        src = src.slice(d, {1, whole[d] - 1});
        dst = dst.slice(d, {2, whole[d]});
      }
    device->copy(StreamKind::kCompute, dst, src);
    const dim_t src_first = src.as<int>() - from.data(), dst_first = dst.as<int>() - to.data();
    for (dim_t i = 0; i < src.dim(0); ++i)
      for (dim_t j = 0; j < src.dim(1); ++j)
        for (dim_t k = 0; k < src.dim(2); ++k)
          for (dim_t l = 0; l < src.dim(3); ++l) {
            const dim_t offset = i * src.stride(0) + j * src.stride(1) + k * src.stride(2) + l;
            expected[dst_first + offset] = from[src_first + offset];
          }
    EXPECT_EQ(to, expected) << "narrowed dimensions " << narrowed;
  }
}

TEST(CpuDevice, CopiesBetweenAStridedAndAContiguousView) {
  auto device = make_cpu_device({});
  std::vector<int> matrix = counted(12), packed(6, 0);
  device->copy(StreamKind::kCompute, view(packed, {3, 2}), view(matrix, {3, 4}).slice(1, {1, 3}));
  EXPECT_EQ(packed, (std::vector<int>{2, 3, 6, 7, 10, 11}));
}

TEST(CpuDevice, ZeroLeavesTheRestAlone) {
  auto device = make_cpu_device({});
  std::vector<int> matrix = counted(6);
  device->zero(StreamKind::kCompute, view(matrix, {2, 3}).slice(1, {0, 2}));
  EXPECT_EQ(matrix, (std::vector<int>{0, 0, 3, 0, 0, 6}));
}

TEST(CpuDevice, CopiesOfNothingAreLegal) {
  auto device = make_cpu_device({});
  std::vector<int> values = counted(6);
  device->copy(StreamKind::kCompute, view(values, {2, 3}).rows(1, 1), view(values, {2, 3}).rows(0, 0));
  EXPECT_EQ(values, counted(6));
}

TEST(CpuDevice, RefusesOtherShapesAndTypes) {
  auto device = make_cpu_device({});
  std::vector<int> a(6), b(6);
  EXPECT_THROW(device->copy(StreamKind::kCompute, view(a, {2, 3}), view(b, {3, 2})), InternalError);
  EXPECT_THROW(device->copy(StreamKind::kCompute, view(a, {6}), Tensor(b.data(), DType::kF32, {6})), InternalError);
}

// The point of lazy copies: without the wait the reader sees old data, every time.
TEST(LazyCopies, AMissingWaitShowsOldData) {
  auto device = make_cpu_device({.lazy_copies = true});
  std::vector<int> src{7}, dst{0};
  device->copy(StreamKind::kToDevice, view(dst, {1}), view(src, {1}));
  const Event copied = device->record(StreamKind::kToDevice);
  EXPECT_EQ(dst[0], 0);
  device->wait(StreamKind::kCompute, copied);
  EXPECT_EQ(dst[0], 7);
}

TEST(LazyCopies, AnOverwrittenSourceShows) {
  auto device = make_cpu_device({.lazy_copies = true});
  std::vector<int> src{7}, dst{0};
  device->copy(StreamKind::kToHost, view(dst, {1}), view(src, {1}));
  src[0] = 8;  // compute did not wait
  device->synchronize();
  EXPECT_EQ(dst[0], 8);
}

TEST(LazyCopies, RunOnlyAsFarAsTheEvent) {
  auto device = make_cpu_device({.lazy_copies = true});
  std::vector<int> src{1, 2}, dst{0, 0};
  device->copy(StreamKind::kToDevice, view(dst, {2}).rows(0, 1), view(src, {2}).rows(0, 1));
  const Event first = device->record(StreamKind::kToDevice);
  device->copy(StreamKind::kToDevice, view(dst, {2}).rows(1, 2), view(src, {2}).rows(1, 2));
  device->wait(StreamKind::kCompute, first);
  EXPECT_EQ(dst, (std::vector<int>{1, 0}));
  device->synchronize();
  EXPECT_EQ(dst, (std::vector<int>{1, 2}));
}

// a -> b on one copy stream, b -> c on the other, a again: each waits for the one before.
TEST(LazyCopies, TwoCopyStreamsWaitForEachOther) {
  auto device = make_cpu_device({.lazy_copies = true});
  std::vector<int> a{5}, b{0}, c{0};
  device->copy(StreamKind::kToHost, view(b, {1}), view(a, {1}));
  device->order(StreamKind::kToHost, StreamKind::kToDevice);
  device->copy(StreamKind::kToDevice, view(c, {1}), view(b, {1}));
  device->order(StreamKind::kToDevice, StreamKind::kToHost);
  device->zero(StreamKind::kToHost, view(b, {1}));
  EXPECT_EQ(b[0], 0);
  EXPECT_EQ(c[0], 0);
  device->order(StreamKind::kToHost, StreamKind::kCompute);
  EXPECT_EQ(c[0], 5);
  EXPECT_EQ(b[0], 0);
}

TEST(LazyCopies, WithoutTheOrderBetweenCopyStreamsOldDataIsCopied) {
  auto device = make_cpu_device({.lazy_copies = true});
  std::vector<int> a{5}, b{0}, c{0};
  device->copy(StreamKind::kToHost, view(b, {1}), view(a, {1}));
  device->copy(StreamKind::kToDevice, view(c, {1}), view(b, {1}));
  device->order(StreamKind::kToDevice, StreamKind::kCompute);
  EXPECT_EQ(c[0], 0);
}

TEST(LazyCopies, EventsOfFinishedWorkAreOver) {
  auto device = make_cpu_device({.lazy_copies = true});
  EXPECT_FALSE(device->record(StreamKind::kToHost).pending());
  EXPECT_FALSE(device->record(StreamKind::kCompute).pending());
  std::vector<int> src{1}, dst{0};
  device->copy(StreamKind::kToHost, view(dst, {1}), view(src, {1}));
  const Event copied = device->record(StreamKind::kToHost);
  EXPECT_TRUE(copied.pending());
  device->synchronize();
  device->wait(StreamKind::kCompute, copied);  // twice is harmless
  device->wait(StreamKind::kToDevice, copied);
  EXPECT_FALSE(device->record(StreamKind::kToDevice).pending());  // nothing was queued for it
}

TEST(CpuDevice, ReservesAndNamesWhatItCannot) {
  auto device = make_cpu_device({});
  std::byte* block = device->reserve(MemoryKind::kHost, 4096);
  block[0] = block[4095] = std::byte{1};
  EXPECT_EQ(device->reserve(MemoryKind::kDevice, 0), nullptr);
  try {
    device->reserve(MemoryKind::kHost, dim_t{1} << 60);
    FAIL();
  } catch (const OutOfMemoryError& error) {
    EXPECT_NE(std::string(error.what()).find("host memory"), std::string::npos) << error.what();
  }
}

TEST(MetaDevice, HostAndDeviceAddressesAreApart) {
  auto device = make_meta_device(Backend::kCuda, 1);
  const std::byte* on_device = device->reserve(MemoryKind::kDevice, 0);
  const std::byte* on_host = device->reserve(MemoryKind::kHost, 0);
  EXPECT_NE(on_device, nullptr);
  EXPECT_GT(on_host - on_device, dim_t{1} << 50);
  EXPECT_EQ(device->target(), Backend::kCuda);
}

}  // namespace
}  // namespace untied
