#include "train/optimizer.h"

#include "memory/tiles.h"
#include "ops/elementwise.h"

namespace untied {
namespace {

// Elements that one piece of streamed state has: 16 MiB in each of the streams, enough to fill the bus.
constexpr dim_t kPieceElements = dim_t{4} << 20;

// A rank's fp32 state brought to the device for one piece, and taken back.
class Streamed {
 public:
  Streamed(Ctx& ctx, const Tensor& home, MemoryKind place) : home_(home), near_(home) {
    if (place == MemoryKind::kDevice) return;
    buffer_ = ctx.memory.take("optimizer piece", Category::kStaging, DType::kF32, home.shape(), StreamKind::kToDevice);
    buffer_.used_on(StreamKind::kCompute);
    buffer_.used_on(StreamKind::kToHost);
    near_ = buffer_.tensor(DType::kF32, home.shape());
    copy(ctx, StreamKind::kToDevice, near_, home_);
  }
  const Tensor& tensor() const { return near_; }
  void take_back(Ctx& ctx) const {
    if (buffer_.defined()) copy(ctx, StreamKind::kToHost, home_, near_);
  }

 private:
  Tensor home_, near_;
  Buffer buffer_;
};

}  // namespace

Optimizer::Optimizer(Ctx& ctx, const ParameterTable& table, int rank, int ranks, DType working, MemoryKind place)
    : table_(table), rank_(rank), ranks_(ranks), has_master_(working != DType::kF32), place_(place) {
  Arena& arena = place == MemoryKind::kHost ? ctx.host : ctx.memory;
  auto take = [&](std::vector<Buffer>& into, const char* name, dim_t n) {
    into.push_back(arena.take(name, Category::kOptimizer, DType::kF32, {n}));
    into.back().used_on(StreamKind::kToDevice);
    into.back().used_on(StreamKind::kToHost);
    ctx.device.zero(StreamKind::kCompute, into.back().tensor(DType::kF32, {n}));
  };
  for (const Unit& unit : table.units()) {
    const dim_t n = padded_size(unit, ranks) / ranks;
    if (has_master_) take(masters_, "master weights", n);
    take(moments1_, "first moment", n);
    take(moments2_, "second moment", n);
  }
}

Tensor Optimizer::tensor(const std::vector<Buffer>& buffers, int unit) const {
  return buffers[unit].tensor(DType::kF32, {padded_size(table_.units()[unit], ranks_) / ranks_});
}

void Optimizer::step(Ctx& ctx, ShardedParameters& weights, const GradientShards& gradients, const AdamWStep& step) {
  enter(ctx, "optimizer");
  // State of the last step, and gradients, may still be on their way to the host.
  ctx.device.order(StreamKind::kToHost, StreamKind::kToDevice);
  for (int unit = 0; unit < static_cast<int>(table_.units().size()); ++unit) {
    const Tensor working = weights.shard(unit);
    const std::vector<ShardPiece> parameters = shard_pieces(table_, unit, rank_, ranks_);
    for (const Tile& piece : TileLoop(ctx, working.dim(0), std::min(kPieceElements, working.dim(0)))) {
      const Streamed m(ctx, moment1(unit).rows(piece.rows), place_);
      const Streamed v(ctx, moment2(unit).rows(piece.rows), place_);
      const Streamed gradient(ctx, gradients.shard(unit).rows(piece.rows), gradients.place());
      const Streamed master(ctx, (has_master_ ? this->master(unit) : working).rows(piece.rows),
                            has_master_ ? place_ : MemoryKind::kDevice);
      ctx.device.order(StreamKind::kToDevice, StreamKind::kCompute);
      for (const ShardPiece& p : parameters) {
        const Range here = intersect(p.in_shard, piece.rows);
        if (here.empty()) continue;
        const Range in_piece{here.begin - piece.rows.begin, here.end - piece.rows.begin};
        AdamWStep mine = step;
        if (!table_.parameters()[p.parameter].decays) mine.weight_decay = 0;
        adamw(ctx, working.rows(here), master.tensor().rows(in_piece), m.tensor().rows(in_piece),
              v.tensor().rows(in_piece), gradient.tensor().rows(in_piece), mine);
      }
      ctx.device.order(StreamKind::kCompute, StreamKind::kToHost);
      for (const Streamed* state : {&m, &v}) state->take_back(ctx);
      if (has_master_) master.take_back(ctx);
    }
  }
}

}  // namespace untied
