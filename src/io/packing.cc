#include "io/packing.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/error.h"

namespace untied {
namespace {

// Fills one sequence after the other.
class Packer {
 public:
  Packer(Packed& out, dim_t context) : out_(out), context_(context) {}

  dim_t room() const { return context_ - used_; }
  void add(Piece piece) {
    out_.pieces.push_back(piece);
    used_ += piece.tokens.size();
  }
  void close() {
    if (used_ == 0) return;
    out_.padding += room();
    out_.first_piece.push_back(static_cast<dim_t>(out_.pieces.size()));
    used_ = 0;
  }

 private:
  Packed& out_;
  dim_t context_, used_ = 0;
};

void add_whole(Packer& packer, Packed& out, dim_t document, dim_t length, const PackOptions& options) {
  for_each_piece(length, options, [&](Range tokens) {
    if (tokens.size() > packer.room()) packer.close();
    packer.add({document, tokens});
  });
  if (length <= options.context) return;
  switch (options.long_documents) {
    case LongDocuments::kSplit: ++out.split_documents; break;
    case LongDocuments::kTruncate:
      ++out.truncated_documents;
      out.dropped_tokens += length - options.context;
      break;
    case LongDocuments::kDrop:
      ++out.dropped_documents;
      out.dropped_tokens += length;
      break;
    case LongDocuments::kError:
      CHECK(false, "document {} has {} tokens, the context {}", document, length, options.context);
  }
}

void add_stream(Packer& packer, dim_t document, dim_t length) {
  for (dim_t begin = 0; begin < length;) {
    if (packer.room() == 0) packer.close();
    const dim_t end = begin + std::min(length - begin, packer.room());
    packer.add({document, {begin, end}});
    begin = end;
  }
}

// splitmix64 (Steele, Lea, Flood 2014; public domain code by Vigna): a counter and a bijective mix of 64 bits.
constexpr std::uint64_t kGolden = 0x9E3779B97F4A7C15u;

std::uint64_t mix(std::uint64_t z) {
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}

}  // namespace

Packed pack(std::span<const dim_t> lengths, std::span<const dim_t> order, const PackOptions& options) {
  CHECK(options.context > 0, "the context is {}", options.context);
  Packed out;
  Packer packer(out, options.context);
  const dim_t count = static_cast<dim_t>(order.empty() ? lengths.size() : order.size());
  out.pieces.reserve(static_cast<std::size_t>(count));
  for (dim_t i = 0; i < count; ++i) {
    const dim_t document = order.empty() ? i : order[i];
    if (options.packing == Packing::kConcat) {
      add_stream(packer, document, lengths[document]);
    } else {
      add_whole(packer, out, document, lengths[document], options);
    }
  }
  packer.close();
  return out;
}

std::vector<dim_t> shuffled_order(dim_t n, std::uint64_t seed, dim_t epoch) {
  // The seed is mixed before the epoch is added, so that (seed, epoch + 1) and (seed + 1, epoch) start far apart.
  std::uint64_t state = mix(mix(seed + kGolden) + static_cast<std::uint64_t>(epoch));
  const auto next = [&state] { return mix(state += kGolden); };
  const auto below = [&next](std::uint64_t bound) {  // uniform: the draws that would favour small values are redrawn
    const std::uint64_t reject = (0 - bound) % bound;
    std::uint64_t draw = next();
    while (draw < reject) draw = next();
    return draw % bound;
  };
  std::vector<dim_t> order(static_cast<std::size_t>(n));
  std::iota(order.begin(), order.end(), dim_t{0});
  for (dim_t i = n - 1; i > 0; --i) std::swap(order[i], order[below(static_cast<std::uint64_t>(i) + 1)]);
  return order;
}

}  // namespace untied
