#include "ops/attention_calls.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>
#include <vector>

#include "ops/attention_backends.h"

namespace untied::test {
namespace {

constexpr dim_t kKi = 1024;

struct Case {
  dim_t first_row, rows;
  std::vector<dim_t> documents;
};
std::vector<Case> cases() {
  return {
      {0, 1, {}},
      {0, 1000, {}},
      {5, 300, {0, 7, 8, 100, 301}},
      {0, 32 * kKi, {}},
      {0, 33 * kKi, {}},
      {96 * kKi, 32 * kKi, {}},
      {96 * kKi + 64, 100, {}},  // backward: a rest of 64 mod 128 keys
      {1000, 70 * kKi + 1, {0, 900, 40 * kKi, 41 * kKi + 3}},
      {2048 * kKi - 100, 100, {}},
      {1'000'001, 64 * kKi, {0, 17, 900'000}},
      {10'000'000 - 32 * kKi, 32 * kKi, {}},
  };
}

// For every row, the keys of all its calls, summed over intervals: +1 where a call's keys begin, -1 where they end.
TEST(AttentionCalls, CoverWhatARowAttendsOnce) {
  for (const Case& c : cases())
    for (bool backward : {false, true}) {
      dim_t row = c.first_row;
      double pairs = 0;
      for (const AttentionPart& part : attention_parts(c.first_row, c.rows, c.documents)) {
        EXPECT_EQ(part.rows.begin, row);
        EXPECT_EQ(part.document, document_start(c.documents, part.rows.begin));
        EXPECT_EQ(part.document, document_start(c.documents, part.rows.end - 1));
        const std::vector<KernelCall> calls = kernel_calls(part, backward);
        ASSERT_TRUE(calls[0].causal);
        EXPECT_EQ(calls[0].rows, part.rows);
        EXPECT_EQ(calls[0].keys, part.rows);
        dim_t key = part.document;
        for (std::size_t i = 1; i < calls.size(); ++i) {
          EXPECT_FALSE(calls[i].causal);
          EXPECT_EQ(calls[i].rows, part.rows);
          EXPECT_EQ(calls[i].keys.begin, key);
          key = calls[i].keys.end;
        }
        EXPECT_EQ(key, part.rows.begin);
        const double n = static_cast<double>(part.rows.size());
        pairs += n * (n + 1) / 2 + n * static_cast<double>(part.rows.begin - part.document);
        row = part.rows.end;
      }
      EXPECT_EQ(row, c.first_row + c.rows);
      EXPECT_EQ(pairs, attended_pairs(c.first_row, c.rows, c.documents));
    }
}

TEST(AttentionCalls, StayWithinTheTable) {
  for (const Case& c : cases())
    for (bool backward : {false, true})
      for (const AttentionPart& part : attention_parts(c.first_row, c.rows, c.documents))
        for (const KernelCall& call : kernel_calls(part, backward)) {
          const dim_t heads = heads_per_call(part, backward);
          EXPECT_GE(heads, 1);
          EXPECT_LE(call.rows.size() * heads, kCallRows);
          EXPECT_LE(call.keys.size(), backward ? kBackwardKeys : kForwardKeys);
          if (backward) {
            EXPECT_LE(call.keys.size() * heads, kBackwardKeys);
            EXPECT_TRUE(call.causal || call.keys.size() % 128 != 64) << call.keys.size();
          }
        }
}

TEST(AttentionCalls, RowsAreCutEvenly) {
  const auto sizes = [](dim_t rows) {
    std::vector<dim_t> sizes;
    for (const AttentionPart& part : attention_parts(7, rows, {})) sizes.push_back(part.rows.size());
    return sizes;
  };
  EXPECT_EQ(sizes(32 * kKi), std::vector<dim_t>({32 * kKi}));
  EXPECT_EQ(sizes(128 * kKi), std::vector<dim_t>(4, 32 * kKi));
  EXPECT_EQ(sizes(33 * kKi), std::vector<dim_t>({33 * kKi / 2, 33 * kKi / 2}));
  EXPECT_EQ(sizes(32 * kKi + 1), std::vector<dim_t>({16 * kKi + 128, 16 * kKi - 127}));
}

// However long the sequence: few shapes, as each costs time to build.
TEST(AttentionCalls, AFewShapes) {
  for (dim_t tile : {4 * kKi, 32 * kKi}) {
    std::set<std::pair<dim_t, dim_t>> forward, backward;
    for (dim_t first = 0; first < 2048 * kKi; first += tile)
      for (const AttentionPart& part : attention_parts(first, tile, {})) {
        for (const KernelCall& call : kernel_calls(part, false)) forward.insert({call.rows.size(), call.keys.size()});
        for (const KernelCall& call : kernel_calls(part, true)) backward.insert({call.rows.size(), call.keys.size()});
      }
    EXPECT_LE(forward.size(), tile == 32 * kKi ? 5u : 12u);
    EXPECT_LE(backward.size(), tile == 32 * kKi ? 1u : 8u);
  }
}

TEST(AttentionCalls, ThePlainKernelTakesWhatIsSmall) {
  const auto suits = [](dim_t rows, dim_t keys) { return suits_library({{0, rows}, {0, keys}, false}); };
  EXPECT_FALSE(suits(1, 1));
  EXPECT_FALSE(suits(1, 512 * kKi));
  EXPECT_FALSE(suits(16, 512 * kKi));
  EXPECT_FALSE(suits(32 * kKi, 5));
  EXPECT_FALSE(suits(128, 128));
  EXPECT_TRUE(suits(129, 129));
  EXPECT_TRUE(suits(17, 129));
  EXPECT_TRUE(suits(32 * kKi, 32 * kKi));
}

// ------------------------------------------------------------------------------------------------------------- heads, scratch

// Query heads with these key/value heads, `spacing` apart.
std::vector<HeadAddresses> addresses(const std::vector<int>& kv, std::uintptr_t spacing = 4096) {
  std::vector<HeadAddresses> heads;
  for (int i : kv) heads.push_back({65536 + i * spacing, 1048576 + i * spacing * 2, 0, 0});
  return heads;
}
using Groups = std::vector<std::array<dim_t, 3>>;
Groups groups_of(const std::vector<HeadAddresses>& heads, dim_t most) {
  Groups groups;
  for (const HeadGroup& g : head_groups(heads, most)) groups.push_back({g.first, g.count, g.kv_count});
  return groups;
}

TEST(HeadGroups, ByPlaceAndSharing) {
  EXPECT_EQ(groups_of({}, 4), Groups());
  EXPECT_EQ(groups_of(addresses({0, 1, 2, 3}), 1), Groups({{0, 1, 1}, {1, 1, 1}, {2, 1, 1}, {3, 1, 1}}));
  EXPECT_EQ(groups_of(addresses({0, 1, 2, 3}), 4), Groups({{0, 4, 4}}));
  EXPECT_EQ(groups_of(addresses({0, 1, 2, 3}), 3), Groups({{0, 3, 3}, {3, 1, 1}}));
  EXPECT_EQ(groups_of(addresses({0, 0, 0, 0}), 3), Groups({{0, 3, 1}, {3, 1, 1}}));
  EXPECT_EQ(groups_of(addresses({0, 0, 1, 1}), 8), Groups({{0, 4, 2}}));
  EXPECT_EQ(groups_of(addresses({0, 0, 1, 1, 2, 2}), 5), Groups({{0, 4, 2}, {4, 2, 1}}));
  EXPECT_EQ(groups_of(addresses({0, 0, 0, 1}), 8), Groups({{0, 3, 1}, {3, 1, 1}}));
  EXPECT_EQ(groups_of(addresses({0, 1, 1, 2}), 8), Groups({{0, 1, 1}, {1, 2, 1}, {3, 1, 1}}));
  EXPECT_EQ(groups_of(addresses({0, 1, 0, 1}), 8), Groups({{0, 2, 2}, {2, 2, 2}}));  // never backwards
  EXPECT_EQ(groups_of(addresses({0, 1, 3, 5}), 8), Groups({{0, 2, 2}, {2, 2, 2}}));  // 0 1 | 3 5
  EXPECT_EQ(groups_of(addresses({0, 1, 2}, std::uintptr_t{1} << 30), 8), Groups({{0, 1, 1}, {1, 1, 1}, {2, 1, 1}}));
}

TEST(HeadGroups, EveryTensorCounts) {
  std::vector<HeadAddresses> heads = addresses({0, 1, 2});
  for (std::size_t i = 0; i < 3; ++i) heads[i][2] = 4096 * (i == 2 ? 5 : i + 1);
  EXPECT_EQ(groups_of(heads, 8), Groups({{0, 2, 2}, {2, 1, 1}}));
}

TEST(HeadGroups, AnyMapIsCoveredInOrder) {
  std::mt19937 engine(1);
  for (int round = 0; round < 300; ++round) {
    std::vector<int> kv(1 + engine() % 12);
    for (int& k : kv) k = static_cast<int>(engine() % 4);
    const dim_t most = 1 + static_cast<dim_t>(engine() % 6);
    const std::vector<HeadAddresses> heads = addresses(kv);
    dim_t next = 0;
    for (const HeadGroup& g : head_groups(heads, most)) {
      EXPECT_EQ(g.first, next);
      EXPECT_LE(g.count, most);
      ASSERT_EQ(g.count % g.kv_count, 0);
      const dim_t shared = g.count / g.kv_count;
      for (dim_t i = 0; i < g.count; ++i)  // what a call with one stride for all key/value heads would read
        for (std::size_t t = 0; t < 2; ++t) {
          const std::uintptr_t stride = g.kv_count > 1 ? heads[g.first + shared][t] - heads[g.first][t] : 0;
          EXPECT_EQ(heads[g.first + i][t], heads[g.first][t] + stride * static_cast<std::uintptr_t>(i / shared));
        }
      next += g.count;
    }
    EXPECT_EQ(next, static_cast<dim_t>(kv.size()));
  }
}

TEST(AttentionScratch, HoldsEveryCall) {
  for (const Case& c : cases())
    for (bool backward : {false, true})
      for (dim_t heads : {1, 3, 32}) {
        const dim_t D = 128;
        const AttentionScratch s = attention_scratch_cuda(heads, c.rows, c.first_row + c.rows, D, backward);
        for (const AttentionPart& part : attention_parts(c.first_row, c.rows, c.documents)) {
          const std::vector<KernelCall> calls = kernel_calls(part, backward);
          const dim_t count = std::min(heads, heads_per_call(part, backward)), rows = count * part.rows.size();
          // Each piece ends where the next begins.
          const dim_t after_lse = !backward && calls.size() > 1 ? s.lse_sum
                                  : calls.size() > 1            ? s.part
                                  : backward                    ? s.dk
                                                                : s.plan;
          EXPECT_GE(after_lse - s.lse, rows * 4);
          if (calls.size() > 1) {
            if (!backward) {
              EXPECT_GE(s.part - s.lse_sum, rows * 4);
            }
            EXPECT_GE(s.sum - s.part, rows * D * 2);
            EXPECT_GE((backward ? s.dk : s.plan) - s.sum, rows * D * 4);
          }
          if (!backward) continue;
          for (const KernelCall& call : calls) {
            EXPECT_GE(s.dv - s.dk, count * call.keys.size() * D * 2);
            EXPECT_GE(s.plan - s.dv, count * call.keys.size() * D * 2);
            const dim_t full_heads = count > 1 ? 2 * count * call.keys.size() * D * 2 : 0;
            EXPECT_GE(s.plan_bytes, rows * (D + 1) * 4 + full_heads);
          }
        }
        EXPECT_EQ(s.bytes, s.plan + round_up(s.plan_bytes, Arena::kAlignment));
        EXPECT_LE(s.bytes, dim_t{96} << 20);  // whatever the number of rows and keys
      }
}

TEST(AttentionScratch, IsWhatTheOpTakes) {
  const auto device = make_meta_device(Backend::kCuda, 1);
  for (bool backward : {false, true}) {
    EXPECT_EQ(attention_workspace(*device, 4, 5000, 10'000'000, 128, backward),
              attention_scratch_cuda(4, 5000, 10'000'000, 128, backward).bytes);
    EXPECT_EQ(attention_workspace(*device, 0, 5000, 10'000, 128, backward), 0);
  }
}

}  // namespace
}  // namespace untied::test
