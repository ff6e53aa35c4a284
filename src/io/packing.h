// Which tokens make which sequence: pure functions of document lengths, with no file and no token in sight.
//
// Documents are packed next-fit in the given order: a document goes behind the one before it if it fits, else the
// sequence is closed, its rest is padding, and the next one starts. Next-fit needs no memory of half-full sequences, so
// the order of training stays the order of the data; a document is never split unless it alone exceeds the context.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/size.h"
#include "io/dataset.h"

namespace untied {

struct PackOptions {
  dim_t context = 0;  // S
  Packing packing = Packing::kDocuments;
  LongDocuments long_documents = LongDocuments::kSplit;  // of no effect on kConcat, which cuts wherever a sequence ends
};

// Some tokens of one document, often all of them. Except under kConcat a piece is a document of its own: its positions
// start at 0, it attends to itself only, and the label of the first token behind the cut is nobody's target.
struct Piece {
  dim_t document = 0;
  Range tokens;
  constexpr bool operator==(const Piece&) const = default;
};

struct Packed {
  std::vector<Piece> pieces;
  std::vector<dim_t> first_piece = {0};  // [sequences + 1]
  dim_t padding = 0;
  dim_t split_documents = 0, truncated_documents = 0, dropped_documents = 0, dropped_tokens = 0;

  dim_t sequences() const { return static_cast<dim_t>(first_piece.size()) - 1; }
  std::span<const Piece> sequence(dim_t i) const {
    return std::span(pieces).subspan(first_piece[i], first_piece[i + 1] - first_piece[i]);
  }
};

// Packs the documents named by `order` (all of them, as they come, when it is empty). Documents without tokens are
// passed over. kError must have been answered before: a document that is too long is then a broken invariant.
Packed pack(std::span<const dim_t> lengths, std::span<const dim_t> order, const PackOptions& options);

// Calls use(Range) for each piece of a document that is not concatenated with others: the one rule that packing and the
// counting of targets share.
template <class Use>
void for_each_piece(dim_t length, const PackOptions& options, Use&& use) {
  const dim_t context = options.context;
  if (length <= context) {
    if (length > 0) use(Range{0, length});
  } else if (options.long_documents == LongDocuments::kTruncate) {
    use(Range{0, context});
  } else if (options.long_documents == LongDocuments::kSplit) {
    for (dim_t begin = 0; begin < length; begin += context)
      use(Range{begin, length - begin < context ? length : begin + context});
  }
}

// A permutation of 0 .. n-1 that depends on (n, seed, epoch) and on nothing else, the standard library included: a
// resumed run, on another machine, sees the same order. Fisher-Yates, fed by splitmix64.
std::vector<dim_t> shuffled_order(dim_t n, std::uint64_t seed, dim_t epoch);

}  // namespace untied
