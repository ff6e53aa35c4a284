#include "memory/tiles.h"

#include <algorithm>
#include <cmath>

namespace untied {
namespace {

using Work = std::array<double, 5>;

constexpr dim_t kLongestRound = 4;  // double buffers alternate, so memory recurs every second tile
// Three rounds show whether the work grows evenly; two would take a first tile that differs for growth.
constexpr dim_t kRounds = 3;

static_assert(sizeof(Trace) == sizeof(Work), "work_of and set_work must know every counter");

Work work_of(const Trace& t) {
  return {t.flops, t.bytes_moved, t.bytes_sent, t.bytes_copied, static_cast<double>(t.ops)};
}

void set_work(Trace& t, const Work& w) { t = {w[0], w[1], w[2], w[3], std::llround(w[4])}; }

template <class Each>
Work combine(const Work& a, const Work& b, Each&& each) {
  Work result;
  for (std::size_t i = 0; i < result.size(); ++i) result[i] = each(a[i], b[i]);
  return result;
}
Work operator+(const Work& a, const Work& b) {
  return combine(a, b, [](double x, double y) { return x + y; });
}
Work operator-(const Work& a, const Work& b) {
  return combine(a, b, [](double x, double y) { return x - y; });
}
Work operator*(const Work& a, double times) {
  return combine(a, a, [&](double x, double) { return x * times; });
}

// Equal as far as a plan cares, and up to the rounding of the totals that the two are differences of (1e21 FLOPs are a count
// far beyond 2^53).
bool same(const Work& a, const Work& b, const Work& total) {
  for (std::size_t i = 0; i < a.size(); ++i)
    if (std::abs(a[i] - b[i]) > 1e-6 * std::abs(a[i]) + 1e-14 * std::abs(total[i])) return false;
  return true;
}

std::uint64_t signature(const Ctx& ctx) { return ctx.memory.signature() * 31 + ctx.host.signature(); }

}  // namespace

TileLoop::TileLoop(Ctx& ctx, dim_t rows, dim_t tile_rows) : ctx_(ctx), rows_(rows), tile_rows_(tile_rows) {
  CHECK(rows >= 0 && tile_rows > 0, "{} rows in tiles of {}", rows, tile_rows);
  count_ = ceil_div(rows, tile_rows);
}

TileLoop::Iterator TileLoop::begin() {
  may_jump_ = ctx_.is_meta() && !ctx_.every_tile;
  jump_.reset();
  seen_.clear();
  if (may_jump_) seen_.push_back({signature(ctx_), work_of(ctx_.trace)});
  return {this, 0};
}

Tile TileLoop::tile(dim_t index) const {
  auto rows = [&](dim_t i) {
    const dim_t begin = std::min(i * tile_rows_, rows_);
    return Range{begin, std::min(begin + tile_rows_, rows_)};
  };
  return {index, rows(index), rows(index + 1)};
}

// The tile that runs after `index`.
dim_t TileLoop::after(dim_t index) {
  ++index;
  if (index >= count_ || !(may_jump_ || jump_)) return index;
  seen_.push_back({signature(ctx_), work_of(ctx_.trace)});
  if (jump_) return check_landing(index);
  jump_ = find_jump(index);
  if (!jump_) return index;
  may_jump_ = false;
  seen_.assign(1, {jump_->before.memory, work_of(ctx_.trace)});
  return jump_->to;
}

std::optional<TileLoop::Jump> TileLoop::find_jump(dim_t index) const {
  // Tiles before this one are whole and followed by a whole one, so they are all alike.
  const dim_t alike = rows_ / tile_rows_ - 1;
  const dim_t ran = static_cast<dim_t>(seen_.size()) - 1;
  for (dim_t round = 1; round <= kLongestRound && kRounds * round <= ran; ++round) {
    const dim_t skipped = (alike - index) / round - 1;  // rounds; one more runs behind the jump
    if (skipped < 1) return std::nullopt;
    auto back = [&](dim_t rounds) -> const State& { return seen_[ran - rounds * round]; };
    if (back(0).memory != back(1).memory || back(0).memory != back(2).memory || back(0).memory != back(3).memory)
      continue;
    const Work first = back(2).total - back(3).total;
    const Work second = back(1).total - back(2).total;
    const Work third = back(0).total - back(1).total;
    const Work growth = third - second;
    if (!same(growth, second - first, back(0).total)) continue;
    const double n = static_cast<double>(skipped);
    set_work(ctx_.trace, back(0).total + third * n + growth * (n * (n + 1) / 2));
    return Jump{index, index + skipped * round, static_cast<std::size_t>(round), back(0), third + growth * (n + 1)};
  }
  return std::nullopt;
}

// Behind the jump: did the round there do what was expected? If not, the tiles between are not what was counted: back to them.
dim_t TileLoop::check_landing(dim_t index) {
  if (seen_.size() <= jump_->round) return index;
  const Jump jump = *std::exchange(jump_, std::nullopt);
  CHECK(seen_.back().memory == jump.before.memory,
        "tiles {} to {} left the memory as they found it, tile {} did not: a plan cannot tell what those between do",
        jump.from - static_cast<dim_t>(jump.round), jump.from - 1, index - 1);
  const Work landed = seen_.back().total - seen_.front().total;
  if (same(landed, jump.expected, seen_.back().total)) return index;
  set_work(ctx_.trace, jump.before.total);
  return jump.from;
}

}  // namespace untied
