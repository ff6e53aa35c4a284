// Rows of a hidden state, wherever they are: resident on the device, or saved and brought near tile by tile, one tile ahead.
#pragma once

#include "memory/store.h"
#include "memory/tiles.h"

namespace untied {

class RowSource {
 public:
  explicit RowSource(const Tensor& resident) : resident_(resident) {}
  RowSource(SavedTensor& saved, int slot) : RowSource(saved, slot, {0, saved.columns()}) {}
  RowSource(SavedTensor& saved, int slot, Range columns) : saved_(&saved), slot_(slot), columns_(columns) {}

  Fetched fetch(Ctx& ctx, Range rows) const {
    return saved_ ? saved_->fetch(ctx, slot_, {rows, columns_}) : Fetched(resident_.rows(rows));
  }

 private:
  Tensor resident_;
  SavedTensor* saved_ = nullptr;
  int slot_ = 0;
  Range columns_;
};

// Tiles in order, each fetched while the one before it is in use. The same rows may be walked in several loops: the last tile of
// one fetches the first of the next, so that only the first loop begins with a wait.
class RowsAhead {
 public:
  RowsAhead(Ctx& ctx, const RowSource& source, const Tile& first, int loops = 1)
      : ctx_(ctx), source_(source), first_(first.rows), loops_left_(loops) {
    if (!first_.empty()) next_ = source.fetch(ctx, first_);
  }
  // This tile's rows; they stay until the next call.
  Tensor at(const Tile& tile) {
    now_ = std::move(next_);
    CHECK(now_.defined(), "rows {} to {} in more loops than were announced", tile.rows.begin, tile.rows.end);
    if (!tile.next.empty()) next_ = source_.fetch(ctx_, tile.next);
    else if (--loops_left_ > 0) next_ = source_.fetch(ctx_, first_);
    return now_.tensor(ctx_);
  }

 private:
  Ctx& ctx_;
  RowSource source_;
  Range first_;
  int loops_left_;
  Fetched now_, next_;
};

}  // namespace untied
