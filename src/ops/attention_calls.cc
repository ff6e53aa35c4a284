#include "ops/attention_calls.h"

#include <algorithm>

#include "ops/attention_backends.h"

namespace untied {
namespace {

constexpr dim_t kKernelTile = 128;  // rows, keys of one thread block of the library
constexpr dim_t kFewRows = 16;      // or keys: not worth the library
constexpr dim_t kSpan = dim_t{1} << 31;

// What the library's plans may take beyond what is known of them (forward nothing; backward the fp32 dq and row sums, and dk,
// dv of every query head where some share a key/value head). It was never seen to take more.
constexpr dim_t kPlanSlack = dim_t{16} << 20;

dim_t slice_size(dim_t left, bool backward) {
  for (dim_t size = backward ? kBackwardKeys : kForwardKeys; size >= kShortSlice; size /= 2)
    if (left >= size) return size;
  // The library's backward (to 9.26 at least, sm90) does not mask the end of 64 mod 128 keys: where a row's log-sum-exp is below
  // -88, exp(0 - lse) overflows and dq is NaN. Two halves are 32 mod 64 keys each. The causal mask hides it in the squares.
  if (backward && left % kKernelTile == kKernelTile / 2) return left / 2;
  return left;
}

class Layout {
 public:
  dim_t take(dim_t bytes) {
    const dim_t at = used_;
    used_ += round_up(bytes, Arena::kAlignment);
    return at;
  }
  dim_t used() const { return used_; }

 private:
  dim_t used_ = 0;
};

}  // namespace

std::vector<AttentionPart> attention_parts(dim_t first_row, dim_t rows, DocumentStarts documents) {
  std::vector<AttentionPart> parts;
  const dim_t end = first_row + rows;
  for (dim_t row = first_row; row < end;) {
    const dim_t document = document_start(documents, row), stop = document_end(documents, row, end);
    // Equal parts: 33 Ki rows as 32 and 1 would run the second at a tenth of the speed.
    const dim_t size = round_up(ceil_div(stop - row, ceil_div(stop - row, kCallRows)), kKernelTile);
    for (; row < stop; row = std::min(row + size, stop)) parts.push_back({{row, std::min(row + size, stop)}, document});
  }
  return parts;
}

std::vector<KernelCall> kernel_calls(const AttentionPart& part, bool backward) {
  std::vector<KernelCall> calls = {{part.rows, part.rows, /*causal=*/true}};
  for (dim_t key = part.document; key < part.rows.begin;) {
    const dim_t size = slice_size(part.rows.begin - key, backward);
    calls.push_back({part.rows, {key, key + size}, /*causal=*/false});
    key += size;
  }
  return calls;
}

bool suits_library(const KernelCall& call) {
  const dim_t rows = call.rows.size(), keys = call.keys.size();
  return std::min(rows, keys) > kFewRows && std::max(rows, keys) > kKernelTile;
}

dim_t heads_per_call(const AttentionPart& part, bool backward) {
  const dim_t before = part.rows.begin - part.document;
  const dim_t widest = std::max(part.rows.size(), backward ? std::min(before, kBackwardKeys) : dim_t{0});
  return std::max(kCallRows / widest, dim_t{1});
}

std::vector<HeadGroup> head_groups(std::span<const HeadAddresses> heads, dim_t most) {
  const dim_t total = static_cast<dim_t>(heads.size());
  // The run of query heads from `first` on that share a key/value head.
  const auto sharing = [&](dim_t first) {
    dim_t end = first + 1;
    while (end < total && heads[end] == heads[first]) ++end;
    return end - first;
  };
  // Whether `next` lies as far from the last head as that from the one before it (from `first`, when it is the second).
  const auto evenly_spaced = [&](dim_t first, dim_t shared, dim_t kv_count) {
    const HeadAddresses &begin = heads[first], &last = heads[first + (kv_count - 1) * shared],
                        &next = heads[first + kv_count * shared];
    for (std::size_t i = 0; i < begin.size(); ++i) {
      if (begin[i] == 0 && next[i] == 0) continue;
      if (next[i] <= last[i] || next[i] - begin[i] >= static_cast<std::uintptr_t>(kSpan)) return false;
      if ((next[i] - begin[i]) != (next[i] - last[i]) * static_cast<std::uintptr_t>(kv_count)) return false;
    }
    return true;
  };
  std::vector<HeadGroup> groups;
  for (dim_t first = 0; first < total;) {
    const dim_t shared = std::min(sharing(first), most);
    dim_t kv_count = 1;
    while ((kv_count + 1) * shared <= std::min(most, total - first) && sharing(first + kv_count * shared) == shared &&
           evenly_spaced(first, shared, kv_count))
      ++kv_count;
    groups.push_back({first, kv_count * shared, kv_count});
    first += kv_count * shared;
  }
  return groups;
}

AttentionScratch attention_scratch_cuda(dim_t heads, dim_t rows, dim_t keys, dim_t head_dim, bool backward) {
  const dim_t call_rows = std::min(heads * rows, kCallRows), call_keys = std::min(heads * keys, kBackwardKeys);
  const bool merged = keys > rows || rows > kCallRows;  // else every part is one causal square
  constexpr dim_t kF32 = 4, kBF16 = 2;
  AttentionScratch s;
  Layout layout;
  s.lse = layout.take(call_rows * kF32);
  if (merged) {
    if (!backward) s.lse_sum = layout.take(call_rows * kF32);
    s.part = layout.take(call_rows * head_dim * kBF16);
    s.sum = layout.take(call_rows * head_dim * kF32);
  }
  s.plan_bytes = kPlanSlack;
  if (backward) {
    s.dk = layout.take(call_keys * head_dim * kBF16);
    s.dv = layout.take(call_keys * head_dim * kBF16);
    s.plan_bytes += call_rows * (head_dim + 1) * kF32 + (heads > 1 ? 2 * call_keys * head_dim * kBF16 : 0);
  }
  s.plan = layout.take(s.plan_bytes);
  s.bytes = layout.used();
  return s;
}

}  // namespace untied
