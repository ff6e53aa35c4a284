#include "model/block.h"

#include "model/attention.h"
#include "model/linear.h"
#include "ops/elementwise.h"
#include "ops/rmsnorm.h"
#include "ops/swiglu.h"

namespace untied {
namespace {

using Weights = ShardedParameters::Use;

// x_RE += Wo o.
void add_attention(const Execution& run, const Weights& attention, const Tensor& x_RE, const Tensor& o_RH) {
  linear(run.ctx, x_RE, o_RH, attention["o_proj.weight"], attention.find("o_proj.bias"), Accumulate::kAdd);
}

// gate and up of one tile, from n = norm2(x).
struct GateUp {
  Held gate, up;
};
GateUp gate_up(const Execution& run, const Weights& mlp, const Tensor& n_RE) {
  const Shape shape{n_RE.dim(0), run.model.mlp};
  GateUp y{hold(run, "mlp gate", shape), hold(run, "mlp up", shape)};
  linear(run.ctx, y.gate.tensor, n_RE, mlp["gate_proj.weight"], mlp.find("gate_proj.bias"));
  linear(run.ctx, y.up.tensor, n_RE, mlp["up_proj.weight"], mlp.find("up_proj.bias"));
  return y;
}

Held normed(const Execution& run, const Weights& mlp, const Tensor& x_RE) {
  Held n = hold(run, "mlp norm", x_RE.shape());
  rmsnorm_forward(run.ctx, n.tensor, x_RE, mlp["post_attention_layernorm.weight"], run.model.norm_eps);
  return n;
}

void mlp_forward(const Execution& run, const Weights& mlp, const Tensor& x_RE) {
  Held n = normed(run, mlp, x_RE);
  GateUp y = gate_up(run, mlp, n.tensor);
  swiglu_forward(run.ctx, y.gate.tensor, y.gate.tensor, y.up.tensor);
  linear(run.ctx, x_RE, y.gate.tensor, mlp["down_proj.weight"], mlp.find("down_proj.bias"), Accumulate::kAdd);
}

// dW (+)= dy^T x for the parameter and its bias, if it has one.
void into(Ctx& ctx, GradientShards::Open& gradients, const char* weight, const char* bias, const Tensor& dy_RN,
          const Tensor& x_RE) {
  auto dw = gradients[weight];
  linear_backward_weight(ctx, dw.tensor, gradients.find(bias), dy_RN, x_RE, dw.accumulate);
}

// dx_RE in place, from the x that went into the MLP.
void mlp_backward(const Execution& run, const Weights& mlp, GradientShards::Open& gradients, const Tensor& dx_RE,
                  const Tensor& x_RE) {
  Ctx& ctx = run.ctx;
  Held n = normed(run, mlp, x_RE);
  GateUp y = gate_up(run, mlp, n.tensor);
  Held act = hold(run, "mlp act", y.gate.tensor.shape());
  linear_backward_input(ctx, act.tensor, dx_RE, mlp["down_proj.weight"]);
  swiglu_backward(ctx, act.tensor, y.gate.tensor, y.up.tensor, act.tensor);
  into(ctx, gradients, "down_proj.weight", "down_proj.bias", dx_RE, act.tensor);
  act.buffer.release();
  into(ctx, gradients, "gate_proj.weight", "gate_proj.bias", y.gate.tensor, n.tensor);
  into(ctx, gradients, "up_proj.weight", "up_proj.bias", y.up.tensor, n.tensor);
  // n has been read; its buffer takes dL/dn.
  linear_backward_input(ctx, n.tensor, y.gate.tensor, mlp["gate_proj.weight"]);
  linear_backward_input(ctx, n.tensor, y.up.tensor, mlp["up_proj.weight"], Accumulate::kAdd);
  auto dw = gradients["post_attention_layernorm.weight"];
  rmsnorm_backward(ctx, dx_RE, dw.tensor, n.tensor, x_RE, mlp["post_attention_layernorm.weight"], run.model.norm_eps,
                   dw.accumulate);
}

int attention_unit(const ParameterTable& table, int block) { return table.unit(UnitKind::kAttention, block); }
int mlp_unit(const ParameterTable& table, int block) { return table.unit(UnitKind::kMlp, block); }

}  // namespace

void append_walk(const ParameterTable& table, int block, std::vector<int>& walk) {
  walk.push_back(attention_unit(table, block));
  walk.push_back(mlp_unit(table, block));
}

void block_forward(const Execution& run, const RankBatch& batch, int block, const Held& x, Keep keep) {
  Ctx& ctx = run.ctx;
  enter(ctx, "forward, block {}, attention", block);
  const int slot = run.saved.output_slot(block);
  Event saved;
  if (keep == Keep::kForBackward)
    for (const Tile& tile : TileLoop(ctx, run.tokens, run.tiles.query))
      saved = run.saved.block_input.save(ctx, block, {tile.rows, {0, run.model.hidden}}, x.tensor.rows(tile.rows));
  Weights attention = run.weights.use(attention_unit(run.table, block));
  attention_pass_forward(run, batch, attention, RowSource(x.tensor), slot);

  enter(ctx, "forward, block {}, mlp", block);
  Weights mlp = run.weights.use(mlp_unit(run.table, block));
  ctx.device.wait(StreamKind::kCompute, saved);  // x is overwritten from here on
  TileLoop tiles(ctx, run.tokens, run.tiles.mlp);
  RowsAhead o_ahead(ctx, RowSource(run.saved.output, slot), tiles.first());
  for (const Tile& tile : tiles) {
    const Tensor x_RE = x.tensor.rows(tile.rows);
    add_attention(run, attention, x_RE, o_ahead.at(tile));
    mlp_forward(run, mlp, x_RE);
  }
}

void block_backward(const Execution& run, const RankBatch& batch, int block, const Tensor& dx_TE) {
  Ctx& ctx = run.ctx;
  const int slot = run.saved.output_slot(block);
  const RowSource x_in(run.saved.block_input, block);
  Weights attention = run.weights.use(attention_unit(run.table, block));
  if (run.saved.recompute_attention) {
    enter(ctx, "backward, block {}, attention again", block);
    attention_pass_forward(run, batch, attention, x_in, slot);
  }

  enter(ctx, "backward, block {}, mlp", block);
  GradientShards::Open attention_gradients = run.gradients.open(attention_unit(run.table, block));
  {
    Weights mlp = run.weights.use(mlp_unit(run.table, block));
    GradientShards::Open mlp_gradients = run.gradients.open(mlp_unit(run.table, block));
    TileLoop tiles(ctx, run.tokens, run.tiles.mlp);
    RowsAhead x_ahead(ctx, x_in, tiles.first());
    RowsAhead o_ahead(ctx, RowSource(run.saved.output, slot), tiles.first());
    for (const Tile& tile : tiles) {
      const Tensor dx_RE = dx_TE.rows(tile.rows), o_RH = o_ahead.at(tile);
      Held x_mid = hold(run, "mlp input", dx_RE.shape());
      copy(ctx, StreamKind::kCompute, x_mid.tensor, x_ahead.at(tile));
      add_attention(run, attention, x_mid.tensor, o_RH);
      mlp_backward(run, mlp, mlp_gradients, dx_RE, x_mid.tensor);
      into(ctx, attention_gradients, "o_proj.weight", "o_proj.bias", dx_RE, o_RH);
    }
    run.gradients.reduce(std::move(mlp_gradients));
  }

  enter(ctx, "backward, block {}, attention", block);
  attention_pass_backward(run, batch, attention, attention_gradients, x_in, slot, dx_TE);
  run.gradients.reduce(std::move(attention_gradients));
}

}  // namespace untied
