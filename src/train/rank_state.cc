#include "train/rank_state.h"

#include "model/model.h"
#include "model/rope.h"

namespace untied {
namespace {

dim_t lse_width(const HeadSchedule& heads, int rank) {
  dim_t width = 0;
  for (const Stage& stage : heads.stages) width += heads.ranks * stage.ranks[rank].heads.size();
  return width;
}

SavedActivations make_saved(Ctx& ctx, const Layout& layout, const ModelConfig& model, const HeadSchedule& heads,
                            int rank) {
  const int blocks = static_cast<int>(model.blocks);
  const bool recompute = layout.save == SavePolicy::kRecompute;
  const int outputs = recompute ? 1 : blocks;
  return {recompute, SavedTensor(ctx, layout.store, "block inputs", blocks, layout.dtype, layout.tokens, model.hidden),
          SavedTensor(ctx, layout.store, "attention outputs", outputs, layout.dtype, layout.tokens,
                      model.heads * model.head_dim),
          SavedTensor(ctx, layout.store, "attention lse", outputs, DType::kF32, layout.tokens, lse_width(heads, rank))};
}

Held hold_host(Ctx& ctx, const char* name, DType dtype, const Shape& shape, Category category) {
  Held held{ctx.host.take(name, category, dtype, shape), {}};
  held.tensor = held.buffer.tensor(dtype, shape);
  return held;
}

}  // namespace

RankState::RankState(const Layout& layout_, const ModelConfig& model_, std::unique_ptr<Device> device,
                     std::shared_ptr<Communicator> world_, dim_t device_capacity, dim_t host_capacity)
    : layout(layout_), model(model_), table(model),
      heads(make_head_schedule(model.heads, model.kv_heads, layout.ulysses, layout.heads_per_stage)),
      rope(rope_frequencies(model.rope, model.head_dim)), world(std::move(world_)),
      memory(std::move(device), device_capacity, host_capacity), weights(ctx(), table, *world, layout.dtype),
      gradients(ctx(), table, *world, layout.optimizer, unit_uses(table)),
      optimizer(ctx(), table, world->rank(), world->size(), layout.dtype, layout.optimizer),
      saved(make_saved(ctx(), layout, model, heads, world->rank())),
      ids(hold(ctx(), "ids", DType::kI32, {layout.tokens}, Category::kBatch)),
      targets(hold(ctx(), "targets", DType::kI32, {layout.tokens}, Category::kBatch)),
      positions(hold(ctx(), "positions", DType::kI32, {layout.tokens}, Category::kBatch)),
      batch_staging(hold_host(ctx(), "batch", DType::kI32, {3, layout.tokens}, Category::kBatch)),
      scalars(hold(ctx(), "step scalars", DType::kF64, {3})),
      scalars_host(hold_host(ctx(), "step scalars", DType::kF64, {3}, Category::kTiles)) {
  for (Held* held : {&ids, &targets, &positions}) held->buffer.used_on(StreamKind::kToDevice);
}

Execution RankState::execution() {
  return {ctx(), model, table, heads, layout.tiles, layout.tokens, *world, weights, gradients, saved, rope};
}

}  // namespace untied
