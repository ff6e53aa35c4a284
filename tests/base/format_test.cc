#include "base/format.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace untied {
namespace {

TEST(Format, Bytes) {
  const struct {
    double bytes;
    const char* text;
  } cases[] = {
      {0, "0 B"},
      {17, "17 B"},
      {1023, "1023 B"},
      {1024, "1 KiB"},
      {1536, "1.50 KiB"},
      {524288, "512 KiB"},
      {2007900000, "1.87 GiB"},
      {80e9, "74.51 GiB"},
      {1099511627776, "1 TiB"},
      {-1024, "-1 KiB"},
      {1e19, "8881.78 PiB"},
  };
  for (const auto& c : cases) EXPECT_EQ(format_bytes(c.bytes), c.text);
}

TEST(Format, Tokens) {
  EXPECT_EQ(format_tokens(0), "0");
  EXPECT_EQ(format_tokens(1000), "1000");
  EXPECT_EQ(format_tokens(1024), "1024 (1K)");
  EXPECT_EQ(format_tokens(131072), "131072 (128K)");
  EXPECT_EQ(format_tokens(1048576), "1048576 (1M)");
  EXPECT_EQ(format_tokens(1536 * 1024), "1572864 (1536K)");
  EXPECT_EQ(format_tokens(10'000'000), "10000000");
}

// Nothing may read as the unit above it: no "60 s" as minutes, no "1000 ms".
TEST(Format, Seconds) {
  const struct {
    double seconds;
    const char* text;
  } cases[] = {
      {0, "0 us"},         {0.0005, "500 us"},    {0.012, "12 ms"},     {3.4, "3.4 s"},       {119.9, "119.9 s"},
      {120, "2 min 00 s"}, {3599, "59 min 59 s"}, {7200, "2 h 00 min"}, {7500, "2 h 05 min"}, {360000, "100 h 00 min"},
  };
  for (const auto& c : cases) EXPECT_EQ(format_seconds(c.seconds), c.text);
}

TEST(Format, Count) {
  EXPECT_EQ(format_count(512), "512");
  EXPECT_EQ(format_count(1.2e6), "1.20 M");
  EXPECT_EQ(format_count(8.03e9), "8.03 B");
  EXPECT_EQ(format_count(1.5e12), "1.50 T");
}

TEST(Errors, CarryTheirExitCodeAndText) {
  EXPECT_EQ(ConfigError("x").code(), ExitCode::kUsage);
  EXPECT_EQ(OutOfMemoryError("x").code(), ExitCode::kOutOfMemory);
  EXPECT_STREQ(InputError("row {} of {}", 3, "a.jsonl").what(), "row 3 of a.jsonl");
  try {
    CHECK(1 + 1 == 3, "sum is {}", 2);
    FAIL();
  } catch (const Error& e) {
    const std::string text = e.what();
    EXPECT_NE(text.find("sum is 2"), std::string::npos) << text;
    EXPECT_NE(text.find("1 + 1 == 3"), std::string::npos) << text;
    EXPECT_NE(text.find("format_test.cc"), std::string::npos) << text;
    EXPECT_EQ(e.code(), ExitCode::kFailure);
  }
}

}  // namespace
}  // namespace untied
