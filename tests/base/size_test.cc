#include "base/size.h"

#include <gtest/gtest.h>

#include <limits>

namespace untied {
namespace {

struct Case {
  const char* text;
  std::optional<dim_t> value;
};
const auto none = std::nullopt;

TEST(Sizes, ParseTokens) {
  const Case cases[] = {
      {"131072", 131072},
      {"128K", 131072},
      {"128k", 131072},
      {"128Ki", 131072},
      {"1M", 1048576},
      {"10M", 10485760},
      {"2G", 2147483648},
      {"0", 0},
      {"1.5K", 1536},
      {"0.5M", 524288},
      {"128 K", 131072},
      {"1e3", 1000},
      {"", none},
      {"K", none},
      {"-1", none},
      {"-1K", none},
      {"1.5", none},
      {"0.3K", none},
      {"12KB", none},
      {"1T", none},
      {"1KK", none},
      {"nan", none},
      {"inf", none},
      {"1e30", none},
      {"0x10", none},
      {"+5", none},
      {"5,000", none},
      {"5000000000G", none},
      {"4611686018427387904", 4611686018427387904},
      {"9223372036854775808", none},
      {"1 000", none},
  };
  for (const Case& c : cases) EXPECT_EQ(parse_tokens(c.text), c.value) << "'" << c.text << "'";
}

TEST(Sizes, ParseBytes) {
  const Case cases[] = {
      {"1024", 1024},
      {"80GB", 80'000'000'000},
      {"80GiB", 85'899'345'920},
      {"512MiB", 536'870'912},
      {"1TB", 1'000'000'000'000},
      {"2TiB", 2199023255552},
      {"1KB", 1000},
      {"1kib", 1024},
      {"17 B", 17},
      {"1.5GiB", 1610612736},
      {"0", 0},
      {"4PiB", 4503599627370496},
      {"1.87 GiB", none},
      {"80G", none},
      {"80Gi", none},
      {"GB", none},
      {"", none},
      {"-5GB", none},
      {"5000PB", none},
      {"1.5B", none},
      {"80GBs", none},
  };
  for (const Case& c : cases) EXPECT_EQ(parse_bytes(c.text), c.value) << "'" << c.text << "'";
}

TEST(Sizes, CheckedMul) {
  const dim_t most = std::numeric_limits<dim_t>::max();
  EXPECT_EQ(checked_mul(10'000'000, 128'256), 1'282'560'000'000);
  EXPECT_EQ(checked_mul(most, 1), most);
  EXPECT_EQ(checked_mul(most, 0), 0);
  EXPECT_EQ(checked_mul(most, 2), none);
  EXPECT_EQ(checked_mul(dim_t{1} << 32, dim_t{1} << 31), none);
  EXPECT_EQ(checked_mul(-1, 5), none);
  EXPECT_EQ(checked_mul(5, -1), none);
}

TEST(Sizes, DivisionAndRounding) {
  EXPECT_EQ(ceil_div(0, 4), 0);
  EXPECT_EQ(ceil_div(1, 4), 1);
  EXPECT_EQ(ceil_div(8, 4), 2);
  EXPECT_EQ(ceil_div(9, 4), 3);
  EXPECT_EQ(round_up(9, 4), 12);
  EXPECT_EQ(round_up(0, 256), 0);
}

TEST(Ranges, Intersect) {
  EXPECT_EQ(intersect({0, 10}, {5, 15}), (Range{5, 10}));
  EXPECT_EQ(intersect({5, 15}, {0, 10}), (Range{5, 10}));
  EXPECT_EQ(intersect({0, 10}, {2, 3}), (Range{2, 3}));
  for (Range r : {intersect({0, 5}, {5, 9}), intersect({0, 5}, {7, 9}), intersect({7, 9}, {0, 5})}) {
    EXPECT_TRUE(r.empty());
    EXPECT_EQ(r.size(), 0);  // never negative
  }
}

}  // namespace
}  // namespace untied
