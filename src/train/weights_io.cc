#include "train/weights_io.h"

#include "memory/tiles.h"
#include "model/head_order.h"
#include "model/init.h"
#include "ops/elementwise.h"

namespace untied {
namespace {

constexpr dim_t kPieceElements = dim_t{16} << 20;  // 64 MiB of fp32 staging

class CheckpointSource final : public WeightSource {
 public:
  explicit CheckpointSource(std::shared_ptr<const CheckpointReader> checkpoint) : checkpoint_(std::move(checkpoint)) {}
  void read(const Parameter& parameter, Range elements, float* out) const override {
    checkpoint_->read(parameter.name, elements.begin, elements.size(), out);
  }

 private:
  std::shared_ptr<const CheckpointReader> checkpoint_;
};

class RandomSource final : public WeightSource {
 public:
  RandomSource(std::uint64_t seed, double init_std) : seed_(seed), init_std_(init_std) {}
  void read(const Parameter& parameter, Range elements, float* out) const override {
    init_parameter(parameter, init_std_, seed_, elements, out);
  }

 private:
  std::uint64_t seed_;
  double init_std_;
};

// One unit's sharded values, gathered in pieces onto the host of every rank: each(elements of the flat buffer, values).
template <class Each>
void gather_unit(RankState& rank, const Tensor& shard, MemoryKind place, Each&& each) {
  Ctx& ctx = rank.ctx();
  const dim_t W = rank.world->size(), n = shard.dim(0), tile = std::min(n, ceil_div(kPieceElements, W));
  for (const Tile& piece : TileLoop(ctx, n, tile)) {
    Held mine = hold(ctx, "shard piece", shard.dtype(), {piece.size()}, Category::kStaging);
    mine.buffer.used_on(StreamKind::kToDevice);
    Held full = hold(ctx, "gathered piece", shard.dtype(), {W * piece.size()}, Category::kStaging);
    Held wide = hold(ctx, "gathered piece in fp32", DType::kF32, {W * piece.size()}, Category::kStaging);
    Held host{ctx.host.take("gathered piece", Category::kStaging, DType::kF32, wide.tensor.shape(),
                            StreamKind::kToHost),
              {}};
    host.tensor = host.buffer.tensor(DType::kF32, wide.tensor.shape());
    if (place == MemoryKind::kHost) {
      copy(ctx, StreamKind::kToDevice, mine.tensor, shard.rows(piece.rows));
      ctx.device.order(StreamKind::kToDevice, StreamKind::kCompute);
    } else {
      copy(ctx, StreamKind::kCompute, mine.tensor, shard.rows(piece.rows));
    }
    rank.world->all_gather(ctx, StreamKind::kCompute, full.tensor, mine.tensor);
    cast(ctx, wide.tensor, full.tensor);
    wide.buffer.used_on(StreamKind::kToHost);
    ctx.device.order(StreamKind::kCompute, StreamKind::kToHost);
    copy(ctx, StreamKind::kToHost, host.tensor, wide.tensor);
    ctx.device.synchronize();
    rank.world->check();
    if (ctx.is_meta()) continue;
    for (dim_t r = 0; r < W; ++r)
      each(Range{r * n + piece.rows.begin, r * n + piece.rows.end}, host.tensor.f32() + r * piece.size());
  }
}

// The parts of [flat) that belong to parameters, cut into runs that are contiguous in the checkpoint too.
template <class Each>
void for_each_run(const RankState& rank, int unit, Range flat, Each&& each) {
  for (int id : rank.table.units()[unit].parameters) {
    const Parameter& p = rank.table.parameters()[id];
    const Range here = intersect(flat, {p.offset, p.offset + p.shape.size()});
    if (here.empty()) continue;
    const Range inside{here.begin - p.offset, here.end - p.offset};
    for (const OrderRun& run : order_runs(p, rank.heads, rank.model.head_dim, inside))
      each(p, run, p.offset + run.working - flat.begin);
  }
}

void collect(RankState& rank, const std::function<Tensor(int)>& shard, MemoryKind place, const EachParameter& each) {
  for (int unit = 0; unit < static_cast<int>(rank.table.units().size()); ++unit) {
    std::map<std::string, std::vector<float>> values;
    gather_unit(rank, shard(unit), place, [&](Range flat, const float* data) {
      if (!each) return;
      for_each_run(rank, unit, flat, [&](const Parameter& p, const OrderRun& run, dim_t at) {
        std::vector<float>& whole = values[p.name];
        whole.resize(p.shape.size());
        std::copy_n(data + at, run.size, whole.begin() + run.canonical);
      });
    });
    if (each)
      for (int id : rank.table.units()[unit].parameters)
        each(rank.table.parameters()[id], values[rank.table.parameters()[id].name]);
  }
}

}  // namespace

std::unique_ptr<WeightSource> checkpoint_source(std::shared_ptr<const CheckpointReader> checkpoint) {
  return std::make_unique<CheckpointSource>(std::move(checkpoint));
}
std::unique_ptr<WeightSource> random_source(std::uint64_t seed, double init_std) {
  return std::make_unique<RandomSource>(seed, init_std);
}

void load_weights(RankState& rank, const WeightSource* source) {
  Ctx& ctx = rank.ctx();
  enter(ctx, "loading");
  const int me = rank.world->rank();
  for (int unit = 0; unit < static_cast<int>(rank.table.units().size()); ++unit) {
    const Tensor working = rank.weights.shard(unit);
    const dim_t n = working.dim(0);
    for (const Tile& piece : TileLoop(ctx, n, std::min(n, kPieceElements))) {
      Held host{ctx.host.take("loaded piece", Category::kStaging, DType::kF32, {piece.size()}, StreamKind::kToDevice),
                {}};
      host.tensor = host.buffer.tensor(DType::kF32, {piece.size()});
      Held near = hold(ctx, "loaded piece", DType::kF32, {piece.size()}, Category::kStaging);
      near.buffer.used_on(StreamKind::kToDevice);
      if (!ctx.is_meta()) {
        ctx.device.synchronize();  // the host piece may still be on its way from the round before
        std::fill_n(host.tensor.f32(), piece.size(), 0.0f);
        for_each_run(rank, unit, {me * n + piece.rows.begin, me * n + piece.rows.end},
                     [&](const Parameter& p, const OrderRun& run, dim_t at) {
                       source->read(p, {run.canonical, run.canonical + run.size}, host.tensor.f32() + at);
                     });
      }
      ctx.device.order(StreamKind::kCompute, StreamKind::kToDevice);
      copy(ctx, StreamKind::kToDevice, near.tensor, host.tensor);
      ctx.device.order(StreamKind::kToDevice, StreamKind::kCompute);
      cast(ctx, working.rows(piece.rows), near.tensor);
      if (rank.optimizer.has_master()) {
        const Tensor master = rank.optimizer.master(unit).rows(piece.rows);
        if (rank.optimizer.place() == MemoryKind::kDevice) {
          copy(ctx, StreamKind::kCompute, master, near.tensor);
        } else {
          near.buffer.used_on(StreamKind::kToHost);
          ctx.device.order(StreamKind::kCompute, StreamKind::kToHost);
          copy(ctx, StreamKind::kToHost, master, near.tensor);
        }
      }
    }
  }
  ctx.device.synchronize();
}

void save_weights(RankState& rank, CheckpointWriter* writer) {
  enter(rank.ctx(), "saving");
  rank.ctx().device.synchronize();
  const bool masters = rank.optimizer.has_master();
  for (int unit = 0; unit < static_cast<int>(rank.table.units().size()); ++unit) {
    const Tensor shard = masters ? rank.optimizer.master(unit) : rank.weights.shard(unit);
    gather_unit(rank, shard, masters ? rank.optimizer.place() : MemoryKind::kDevice,
                [&](Range flat, const float* data) {
                  if (!writer) return;
                  for_each_run(rank, unit, flat, [&](const Parameter& p, const OrderRun& run, dim_t at) {
                    writer->write(p.name, run.canonical, run.size, data + at);
                  });
                });
  }
}

void collect_gradients(RankState& rank, const EachParameter& each) {
  rank.ctx().device.synchronize();
  collect(
      rank, [&](int unit) { return rank.gradients.shard(unit); }, rank.gradients.place(), each);
}

void collect_weights(RankState& rank, const EachParameter& each) {
  rank.ctx().device.synchronize();
  collect(
      rank, [&](int unit) { return rank.weights.shard(unit); }, MemoryKind::kDevice, each);
}

}  // namespace untied
