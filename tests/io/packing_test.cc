#include "io/packing.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <string>

#include "base/error.h"
#include "base/format.h"

namespace untied {
namespace {

constexpr auto kSplit = LongDocuments::kSplit, kTruncate = LongDocuments::kTruncate, kDrop = LongDocuments::kDrop;
constexpr auto kDocuments = Packing::kDocuments, kConcat = Packing::kConcat;

// "0:0-3 1:0-1 | 2:0-7": pieces as document:begin-end, sequences between bars.
std::string str(const Packed& packed) {
  std::string out;
  for (dim_t i = 0; i < packed.sequences(); ++i) {
    if (i > 0) out += " | ";
    for (const Piece& piece : packed.sequence(i))
      out += format("{}{}:{}-{}", out.empty() || out.back() == ' ' ? "" : " ", piece.document, piece.tokens.begin,
                    piece.tokens.end);
  }
  return out;
}

struct Case {
  std::vector<dim_t> lengths, order;
  PackOptions options;
  std::string packed;
  dim_t padding, split = 0, truncated = 0, dropped = 0, dropped_tokens = 0;
};

TEST(Packing, ByHand) {
  const Case cases[] = {
      {{}, {}, {8, kDocuments, kSplit}, "", 0},
      {{0, 0}, {}, {8, kDocuments, kSplit}, "", 0},
      {{0, 1, 2, 0}, {}, {8, kDocuments, kSplit}, "1:0-1 2:0-2", 5},
      {{3, 1, 7, 2, 3}, {}, {8, kDocuments, kSplit}, "0:0-3 1:0-1 | 2:0-7 | 3:0-2 4:0-3", 4 + 1 + 3},
      {{3, 1, 7, 2, 3}, {4, 2, 0, 3, 1}, {8, kDocuments, kSplit}, "4:0-3 | 2:0-7 | 0:0-3 3:0-2 1:0-1", 5 + 1 + 2},
      {{7}, {}, {8, kDocuments, kSplit}, "0:0-7", 1},
      {{8, 8}, {}, {8, kDocuments, kSplit}, "0:0-8 | 1:0-8", 0},
      {{3, 5, 1}, {}, {8, kDocuments, kSplit}, "0:0-3 1:0-5 | 2:0-1", 7},
      {{9, 3}, {}, {8, kDocuments, kSplit}, "0:0-8 | 0:8-9 1:0-3", 4, 1},
      {{3, 17, 16}, {}, {8, kDocuments, kSplit}, "0:0-3 | 1:0-8 | 1:8-16 | 1:16-17 | 2:0-8 | 2:8-16", 5 + 7, 2},
      {{9, 3}, {}, {8, kDocuments, kTruncate}, "0:0-8 | 1:0-3", 5, 0, 1, 0, 1},
      {{2, 9, 8, 30, 3}, {}, {8, kDocuments, kDrop}, "0:0-2 | 2:0-8 | 4:0-3", 6 + 5, 0, 0, 2, 39},
      {{2, 2}, {}, {1, kDocuments, kSplit}, "0:0-1 | 0:1-2 | 1:0-1 | 1:1-2", 0, 2},
      {{3, 1, 7, 2, 3}, {}, {8, kConcat, kDrop}, "0:0-3 1:0-1 2:0-4 | 2:4-7 3:0-2 4:0-3", 0},
      {{3, 0, 1, 7}, {3, 1, 2, 0}, {8, kConcat, kSplit}, "3:0-7 2:0-1 | 0:0-3", 5},
      {{20}, {}, {8, kConcat, kTruncate}, "0:0-8 | 0:8-16 | 0:16-20", 4},
  };
  for (const Case& c : cases) {
    const Packed packed = pack(c.lengths, c.order, c.options);
    SCOPED_TRACE(c.packed);
    EXPECT_EQ(str(packed), c.packed);
    EXPECT_EQ(packed.padding, c.padding);
    EXPECT_EQ(packed.split_documents, c.split);
    EXPECT_EQ(packed.truncated_documents, c.truncated);
    EXPECT_EQ(packed.dropped_documents, c.dropped);
    EXPECT_EQ(packed.dropped_tokens, c.dropped_tokens);
  }
}

TEST(Packing, LengthsBeyond32Bits) {
  const dim_t tokens = (dim_t{1} << 40) + 1, context = dim_t{1} << 30;
  for (const Packing packing : {kDocuments, kConcat}) {
    const Packed packed = pack(std::vector{tokens, dim_t{5}}, {}, {context, packing, kSplit});
    ASSERT_EQ(packed.sequences(), 1025);
    EXPECT_EQ(packed.sequence(1024)[0], (Piece{0, {tokens - 1, tokens}}));
    EXPECT_EQ(packed.padding, context - 6);
  }
}

TEST(Packing, ALongDocumentUnderErrorIsABrokenInvariant) {
  const PackOptions options{8, kDocuments, LongDocuments::kError};
  EXPECT_NO_THROW(pack(std::vector<dim_t>{8}, {}, options));
  EXPECT_THROW(pack(std::vector<dim_t>{9}, {}, options), InternalError);
}

// Random lengths: every token once and in order, no sequence above the context, documents cut only when they must be,
// and a sequence closed only when the next piece did not fit.
TEST(Packing, CoversEveryTokenOnce) {
  for (const Packing packing : {kDocuments, kConcat}) {
    for (dim_t round = 0; round < 50; ++round) {
      const dim_t context = 1 + round;
      std::vector<dim_t> lengths = shuffled_order(40, 7, round);  // 0 .. 39 in some order
      const std::vector<dim_t> order = shuffled_order(40, 8, round);
      const Packed packed = pack(lengths, order, {context, packing, kSplit});
      std::vector<dim_t> next(lengths.size(), 0), seen;
      for (dim_t i = 0; i < packed.sequences(); ++i) {
        dim_t used = 0;
        for (const auto& [document, tokens] : packed.sequence(i)) {
          ASSERT_EQ(tokens.begin, next[document]);
          ASSERT_FALSE(tokens.empty());
          if (tokens.begin == 0) seen.push_back(document);
          if (packing == kDocuments && lengths[document] <= context) {
            ASSERT_EQ(tokens.size(), lengths[document]);
          }
          next[document] = tokens.end;
          used += tokens.size();
        }
        ASSERT_LE(used, context);
        if (i + 1 < packed.sequences()) {
          ASSERT_GT(used + packed.sequence(i + 1)[0].tokens.size(), context);
          if (packing == kConcat) {
            ASSERT_EQ(used, context);
          }
        }
      }
      EXPECT_EQ(next, lengths);
      std::vector<dim_t> expected = order;
      std::erase_if(expected, [&](dim_t document) { return lengths[document] == 0; });
      EXPECT_EQ(seen, expected);
    }
  }
}

TEST(Shuffle, IsAPermutationOfSeedAndEpochAlone) {
  EXPECT_TRUE(shuffled_order(0, 1, 2).empty());
  EXPECT_EQ(shuffled_order(1, 1, 2), std::vector<dim_t>{0});
  auto order = shuffled_order(1000, 3, 4);
  EXPECT_EQ(order, shuffled_order(1000, 3, 4));
  EXPECT_NE(order, shuffled_order(1000, 4, 3));
  EXPECT_NE(order, shuffled_order(1000, 3, 5));
  EXPECT_NE(order, shuffled_order(1000, 4, 4));
  std::sort(order.begin(), order.end());
  std::vector<dim_t> all(1000);
  std::iota(all.begin(), all.end(), 0);
  EXPECT_EQ(order, all);
}

// Written down once: a run resumed by a later version must see the same order.
TEST(Shuffle, NeverChanges) {
  EXPECT_EQ(shuffled_order(8, 0, 0), (std::vector<dim_t>{6, 3, 0, 7, 2, 5, 1, 4}));
  EXPECT_EQ(shuffled_order(8, 1234567890123456789u, 1), (std::vector<dim_t>{5, 4, 6, 1, 2, 3, 7, 0}));
}

TEST(Shuffle, IsFair) {
  std::map<std::vector<dim_t>, int> counts;
  for (dim_t epoch = 0; epoch < 24000; ++epoch) ++counts[shuffled_order(4, 42, epoch)];
  EXPECT_EQ(counts.size(), 24u);
  for (const auto& [order, count] : counts) EXPECT_NEAR(count, 1000, 5 * 32);  // five standard deviations
}

}  // namespace
}  // namespace untied
