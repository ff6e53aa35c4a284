// Sizes are 64-bit everywhere, and arithmetic that could pass 2^63 is checked.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace untied {

using dim_t = std::int64_t;

constexpr dim_t ceil_div(dim_t a, dim_t b) { return (a + b - 1) / b; }
constexpr dim_t round_up(dim_t a, dim_t b) { return ceil_div(a, b) * b; }

// Half-open range of rows, keys, elements.
struct Range {
  dim_t begin = 0, end = 0;
  constexpr dim_t size() const { return end - begin; }
  constexpr bool empty() const { return end <= begin; }
  constexpr bool operator==(const Range&) const = default;
};
constexpr Range intersect(Range a, Range b) {
  Range r{a.begin > b.begin ? a.begin : b.begin, a.end < b.end ? a.end : b.end};
  return r.empty() ? Range{r.begin, r.begin} : r;
}

// "131072", "128K", "1M", "2G": binary multiples. nullopt when the text is anything else, negative, or beyond 2^62.
std::optional<dim_t> parse_tokens(std::string_view text);
// "80GB" (10^9), "80GiB" (2^30), "512MiB", "1TB", "1024" (bytes).
std::optional<dim_t> parse_bytes(std::string_view text);

// The product, or nullopt when it does not fit in 63 bits or a factor is negative.
std::optional<dim_t> checked_mul(dim_t a, dim_t b);

}  // namespace untied
