#include "device/hardware.h"

#include <gtest/gtest.h>

namespace untied {
namespace {

TEST(Hardware, AVariantIsAnotherGpu) {
  ASSERT_TRUE(limits_of("NVIDIA H200"));
  EXPECT_EQ(limits_of("NVIDIA H200")->bf16_tflops, 989.4);
  EXPECT_EQ(limits_of("NVIDIA H200")->memory_gbs, 4800);
  EXPECT_FALSE(limits_of("NVIDIA H200 NVL"));
  EXPECT_FALSE(limits_of("cpu"));
  EXPECT_FALSE(limits_of(""));
}

}  // namespace
}  // namespace untied
