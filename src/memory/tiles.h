// Loops over tiles of rows (or over blocks of a model: tiles of one). On a real device every tile runs. On meta the loop stops
// repeating itself: once the memory looks as it did one (or two, three, four) tiles ago, the tiles that follow would take and
// release the very same addresses, so the loop jumps to the last ones and counts the work between. That is why a plan for ten
// million tokens takes no longer than one for a thousand.
//
// The work of a tile may be constant, or grow evenly from tile to tile (causal attention). Anything else (a window that is
// full after some tiles) shows where the jump lands: the loop then goes back and runs every tile.
#pragma once

#include <array>
#include <optional>
#include <vector>

#include "memory/context.h"

namespace untied {

struct Tile {
  dim_t index = 0;
  Range rows;  // [begin, end) of the loop's rows
  Range next;  // rows of the tile after this one; empty at the last
  dim_t size() const { return rows.size(); }
};

class TileLoop {
 public:
  TileLoop(Ctx& ctx, dim_t rows, dim_t tile_rows);

  class Iterator {
   public:
    Iterator(TileLoop* loop, dim_t index) : loop_(loop), index_(index) {}
    Tile operator*() const { return loop_->tile(index_); }
    Iterator& operator++() {
      index_ = loop_->after(index_);
      return *this;
    }
    bool operator!=(const Iterator& end) const { return index_ != end.index_; }

   private:
    TileLoop* loop_;
    dim_t index_;
  };
  Iterator begin();
  Iterator end() { return {this, count_}; }
  Tile first() const { return tile(0); }

 private:
  using Work = std::array<double, 5>;  // the counters of a Trace
  struct State {
    std::uint64_t memory;  // signature of both arenas
    Work total;            // so far
  };
  struct Jump {
    dim_t from, to;     // index of the tiles
    std::size_t round;  // tiles that ran in one round, and run once more behind the jump
    State before;
    Work expected;  // of the round behind the jump
  };
  Tile tile(dim_t index) const;
  dim_t after(dim_t index);
  std::optional<Jump> find_jump(dim_t index) const;
  dim_t check_landing(dim_t index);

  Ctx& ctx_;
  dim_t rows_, tile_rows_, count_ = 0;
  bool may_jump_ = false;
  std::vector<State> seen_;  // before each tile that ran, while the loop may jump or is behind a jump
  std::optional<Jump> jump_;
};

}  // namespace untied
