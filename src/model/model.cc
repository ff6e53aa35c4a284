#include "model/model.h"

#include "model/block.h"
#include "model/linear.h"
#include "model/rows.h"
#include "ops/cross_entropy.h"
#include "ops/elementwise.h"
#include "ops/embedding.h"
#include "ops/rmsnorm.h"

namespace untied {
namespace {

struct ModelUnits {
  int embedding, final_norm, head;
  bool tied;
  explicit ModelUnits(const ParameterTable& table)
      : embedding(table.unit(UnitKind::kEmbedding)), final_norm(table.unit(UnitKind::kFinalNorm)),
        head(table.unit(UnitKind::kHead)), tied(embedding == head) {}
  const char* head_weight() const { return tied ? "embed_tokens.weight" : "lm_head.weight"; }
};

std::vector<int> forward_walk(const Execution& run, const ModelUnits& units) {
  std::vector<int> walk{units.embedding};
  for (int block = 0; block < run.model.blocks; ++block) append_walk(run.table, block, walk);
  walk.insert(walk.end(), {units.final_norm, units.head});
  return walk;
}

Held embed(const Execution& run, const RankBatch& batch, int unit) {
  enter(run.ctx, "forward, embedding");
  ShardedParameters::Use weights = run.weights.use(unit);
  Held x = hold(run, "x", {run.tokens, run.model.hidden}, Category::kHidden);
  embedding_forward(run.ctx, x.tensor, batch.ids_T, weights["embed_tokens.weight"]);
  return x;
}

Held forward_blocks(const Execution& run, const RankBatch& batch, const ModelUnits& units, Keep keep) {
  Held x = embed(run, batch, units.embedding);
  x.buffer.used_on(StreamKind::kToHost);  // block inputs are saved from it
  for (const Tile& block : TileLoop(run.ctx, run.model.blocks, 1)) {
    run.between_blocks();
    block_forward(run, batch, static_cast<int>(block.index), x, keep);
  }
  return x;
}

// The head over tiles of rows: each(tile, n_RE, logits_RV) with the final norm and the logits of the tile.
template <class Each>
void head_tiles(const Execution& run, const ShardedParameters::Use& norm, const Tensor& head_VE, const Tensor& x_TE,
                Each&& each) {
  for (const Tile& tile : TileLoop(run.ctx, run.tokens, run.tiles.loss)) {
    Held n = hold(run, "final norm", {tile.size(), run.model.hidden});
    rmsnorm_forward(run.ctx, n.tensor, x_TE.rows(tile.rows), norm["norm.weight"], run.model.norm_eps);
    Held logits = hold(run, "logits", {tile.size(), run.model.vocab});
    linear(run.ctx, logits.tensor, n.tensor, head_VE, std::nullopt);
    each(tile, n, logits.tensor);
  }
}

// Loss, and dL/dx over x tile by tile (ALST, Snowflake 2025: logits exist for one tile only).
void head_forward_backward(const Execution& run, const RankBatch& batch, const ModelUnits& units, const Tensor& x_TE,
                           const Tensor& loss, double loss_scale) {
  Ctx& ctx = run.ctx;
  enter(ctx, "head");
  ShardedParameters::Use norm = run.weights.use(units.final_norm);
  ShardedParameters::Use head = run.weights.use(units.head);
  GradientShards::Open norm_gradients = run.gradients.open(units.final_norm);
  GradientShards::Open head_gradients = run.gradients.open(units.head);
  const Tensor head_VE = head[units.head_weight()];
  head_tiles(run, norm, head_VE, x_TE, [&](const Tile& tile, const Held& n, const Tensor& logits_RV) {
    const Tensor x_RE = x_TE.rows(tile.rows);
    cross_entropy(ctx, loss, logits_RV, batch.targets_T.rows(tile.rows), loss_scale);
    auto dw = head_gradients[units.head_weight()];
    linear_backward_weight(ctx, dw.tensor, std::nullopt, logits_RV, n.tensor, dw.accumulate);
    linear_backward_input(ctx, n.tensor, logits_RV, head_VE);  // n has been read; it takes dL/dn
    Held x = hold(run, "final norm input", x_RE.shape());
    copy(ctx, StreamKind::kCompute, x.tensor, x_RE);
    zero(ctx, x_RE);
    auto dnorm = norm_gradients["norm.weight"];
    rmsnorm_backward(ctx, x_RE, dnorm.tensor, n.tensor, x.tensor, norm["norm.weight"], run.model.norm_eps,
                     dnorm.accumulate);
  });
  run.gradients.reduce(std::move(head_gradients));
  run.gradients.reduce(std::move(norm_gradients));
}

void embedding_gradient(const Execution& run, const RankBatch& batch, int unit, const Tensor& dx_TE) {
  enter(run.ctx, "backward, embedding");
  GradientShards::Open gradients = run.gradients.open(unit);
  const Tensor dtable_VE = gradients["embed_tokens.weight"].tensor;
  zero(run.ctx, dtable_VE);
  embedding_backward(run.ctx, dtable_VE, batch.ids_T, dx_TE);
  run.gradients.reduce(std::move(gradients));
}

}  // namespace

std::vector<int> unit_uses(const ParameterTable& table) {
  const ModelUnits units(table);
  std::vector<int> uses(table.units().size(), 1);
  if (units.tied) uses[units.embedding] = 2;  // as the head, then as the embedding
  return uses;
}

void forward_backward(const Execution& run, const RankBatch& batch, const Tensor& loss, double loss_scale) {
  const ModelUnits units(run.table);
  std::vector<int> walk = forward_walk(run, units);
  for (int block = static_cast<int>(run.model.blocks) - 1; block >= 0; --block) append_walk(run.table, block, walk);
  run.weights.begin_walk(std::move(walk));
  run.gradients.begin_micro_batch();
  for (SavedTensor* saved : {&run.saved.block_input, &run.saved.output, &run.saved.lse}) saved->begin_step();

  Held x = forward_blocks(run, batch, units, Keep::kForBackward);
  head_forward_backward(run, batch, units, x.tensor, loss, loss_scale);
  for (const Tile& from_last : TileLoop(run.ctx, run.model.blocks, 1)) {
    run.between_blocks();
    block_backward(run, batch, static_cast<int>(run.model.blocks - 1 - from_last.index),
                   x.tensor);  // x holds dL/dx now
  }
  embedding_gradient(run, batch, units.embedding, x.tensor);
}

void forward_loss(const Execution& run, const RankBatch& batch, const Tensor& loss) {
  const ModelUnits units(run.table);
  run.weights.begin_walk(forward_walk(run, units));
  Held x = forward_blocks(run, batch, units, Keep::kNothing);
  enter(run.ctx, "head");
  ShardedParameters::Use norm = run.weights.use(units.final_norm);
  ShardedParameters::Use head = run.weights.use(units.head);
  head_tiles(run, norm, head[units.head_weight()], x.tensor,
             [&](const Tile& tile, const Held&, const Tensor& logits_RV) {
               cross_entropy(run.ctx, loss, logits_RV, batch.targets_T.rows(tile.rows), 0.0);
             });
}

void forward_logits(const Execution& run, const RankBatch& batch, const Tensor& logits_TV) {
  const ModelUnits units(run.table);
  run.weights.begin_walk(forward_walk(run, units));
  Held x = forward_blocks(run, batch, units, Keep::kNothing);
  ShardedParameters::Use norm = run.weights.use(units.final_norm);
  ShardedParameters::Use head = run.weights.use(units.head);
  head_tiles(run, norm, head[units.head_weight()], x.tensor,
             [&](const Tile& tile, const Held&, const Tensor& logits_RV) {
               copy(run.ctx, StreamKind::kCompute, logits_TV.rows(tile.rows), logits_RV);
             });
}

}  // namespace untied
