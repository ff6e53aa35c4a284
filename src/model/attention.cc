#include "model/attention.h"

#include <cmath>
#include <optional>

#include "model/linear.h"
#include "ops/elementwise.h"
#include "ops/rmsnorm.h"

namespace untied {
namespace {

using Weights = ShardedParameters::Use;

// The key/value heads that a rank holds during the stages, one [S, D] tensor per slot; gradients in fp32.
struct KeyValueSlots {
  std::vector<Held> buffers;
  std::vector<Tensor> k, v;

  KeyValueSlots(const Execution& run, const char* name_k, const char* name_v, DType dtype) {
    const Shape shape{run.sequence(), run.model.head_dim};
    for (int slot = 0; slot < run.heads.kv_slots; ++slot) {
      buffers.push_back(hold(run.ctx, name_k, dtype, shape, Category::kKeyValues));
      k.push_back(buffers.back().tensor);
      buffers.push_back(hold(run.ctx, name_v, dtype, shape, Category::kKeyValues));
      v.push_back(buffers.back().tensor);
    }
  }
  // The key/value head of each of this rank's query heads.
  std::vector<KeyValue> of(const RankStage& mine) const {
    std::vector<KeyValue> heads;
    for (int slot : mine.slot_of_head) heads.push_back({k[slot], v[slot]});
    return heads;
  }
};

Range columns_of(const Execution& run, const Stage& stage) {
  return {stage.heads.begin * run.model.head_dim, stage.heads.end * run.model.head_dim};
}
std::optional<Tensor> rows_of(const std::optional<Tensor>& tensor, Range rows) {
  return tensor ? std::optional(tensor->rows(rows)) : std::nullopt;
}
double softmax_scale(const Execution& run) { return 1.0 / std::sqrt(static_cast<double>(run.model.head_dim)); }

// The place of a stage in the rows of the saved log-sum-exp, and the shape its tiles have there.
Range lse_columns(const Execution& run, int stage) {
  dim_t begin = 0;
  const int rank = run.context.rank(), P = run.context.size();
  for (int s = 0; s < stage; ++s) begin += P * run.heads.stages[s].ranks[rank].heads.size();
  return {begin, begin + P * run.heads.stages[stage].ranks[rank].heads.size()};
}

Held normed(const Execution& run, const Weights& weights, const Tensor& x_RE) {
  Held n = hold(run, "attention norm", x_RE.shape());
  rmsnorm_forward(run.ctx, n.tensor, x_RE, weights["input_layernorm.weight"], run.model.norm_eps);
  return n;
}

// q of a stage, head-sharded and rotated.
Held queries(const Execution& run, const Weights& weights, const Stage& stage, const Tensor& n_RE,
             const RopeAngles& angles) {
  const Range rows = columns_of(run, stage);
  Held q = hold(run, "queries", {n_RE.dim(0), rows.size()});
  linear(run.ctx, q.tensor, n_RE, weights["q_proj.weight"].rows(rows), rows_of(weights.find("q_proj.bias"), rows));
  return to_heads(run, stage, q.tensor, &angles);
}

// The distinct key or value heads that arrive (or leave) with a stage, of one tile: [R, distinct * D].
Held project_key_values(const Execution& run, const KeyValueExchange& exchange, const Tensor& n_RE,
                        const Tensor& weight, const std::optional<Tensor>& bias) {
  const dim_t D = run.model.head_dim;
  Held y = hold(run, "key/value projection", {n_RE.dim(0), exchange.distinct * D});
  dim_t column = 0;
  for (Range run_of_heads : exchange.runs) {
    const Range rows{run_of_heads.begin * D, run_of_heads.end * D};
    linear(run.ctx, y.tensor.slice(1, {column, column + rows.size()}), n_RE, weight.rows(rows), rows_of(bias, rows));
    column += rows.size();
  }
  return y;
}

// Brings the stage's new key/value heads to the ranks that attend with them: of one tile.
void bring_key_values(const Execution& run, const Weights& weights, const Stage& stage, const KeyValueSlots& kv,
                      const Tile& tile, const Tensor& n_RE, const RopeAngles& angles) {
  {
    Held k = project_key_values(run, stage.arrivals, n_RE, weights["k_proj.weight"], weights.find("k_proj.bias"));
    send_key_values(run, stage, tile.rows, k.tensor, kv.k, &angles);
  }
  Held v = project_key_values(run, stage.arrivals, n_RE, weights["v_proj.weight"], weights.find("v_proj.bias"));
  send_key_values(run, stage, tile.rows, v.tensor, kv.v, nullptr);
}

// Calls attend(block, part) for the query rows of every source rank; part(t) are its heads of a head-sharded tile t.
template <class Attend>
void for_each_block(const Execution& run, const RankStage& mine, Range rows, Attend&& attend) {
  const dim_t h = mine.heads.size();
  if (h == 0) return;
  for (const QueryBlock& block : query_blocks(run.context.size(), run.tokens, rows))
    attend(block, [&](const Tensor& tile) { return tile.rows(block.source * h, (block.source + 1) * h); });
}

// The key/value heads that no stage after this one needs: their gradients go home, into Wk, Wv and dn. Of one tile.
void take_key_value_gradients_home(const Execution& run, const Weights& weights, GradientShards::Open& gradients,
                                   const Stage& stage, const KeyValueSlots& dkv, const Tile& tile, const Tensor& n_RE,
                                   const RopeAngles& angles, const Tensor& dn_RE) {
  const dim_t D = run.model.head_dim;
  auto into = [&](const Held& dy, const char* weight, const char* bias) {
    dim_t column = 0;
    for (Range run_of_heads : stage.departures.runs) {
      const Range rows{run_of_heads.begin * D, run_of_heads.end * D};
      const Tensor dy_RN = dy.tensor.slice(1, {column, column + rows.size()});
      linear_backward_weight(run.ctx, gradients.tensor(weight).rows(rows), rows_of(gradients.find(bias), rows), dy_RN,
                             n_RE, Accumulate::kAdd);
      linear_backward_input(run.ctx, dn_RE, dy_RN, weights[weight].rows(rows), Accumulate::kAdd);
      column += rows.size();
    }
  };
  into(gather_key_value_gradients(run, stage, tile.rows, dkv.k, &angles), "k_proj.weight", "k_proj.bias");
  into(gather_key_value_gradients(run, stage, tile.rows, dkv.v, nullptr), "v_proj.weight", "v_proj.bias");
}

enum class Pass : std::uint8_t { kForward, kBackward };

// What the loop over x before stage s moves (s = stages: behind the last). In backward it takes home what departed with the stage
// before; in both passes it brings what arrives with this one.
struct KeyValueTraffic {
  const Stage* departing = nullptr;  // null: nothing moves that way
  const Stage* arriving = nullptr;

  KeyValueTraffic(const Execution& run, int s, Pass pass) {
    const auto& stages = run.heads.stages;
    if (pass == Pass::kBackward && s > 0 && stages[s - 1].departures.rounds > 0) departing = &stages[s - 1];
    if (s < static_cast<int>(stages.size()) && stages[s].arrivals.rounds > 0) arriving = &stages[s];
  }
  bool any() const { return departing || arriving; }
};

// How often a pass over the stages goes over the rows of x.
int loops_over_x(const Execution& run, Pass pass) {
  const int stages = static_cast<int>(run.heads.stages.size());
  int loops = stages;
  for (int s = 0; s <= stages; ++s) loops += KeyValueTraffic(run, s, pass).any();
  return loops;
}

}  // namespace

void attention_pass_forward(const Execution& run, const RankBatch& batch, const Weights& weights, const RowSource& x,
                            int slot) {
  const KeyValueSlots kv(run, "k", "v", run.dtype());
  TileLoop tiles(run.ctx, run.tokens, run.tiles.query);
  RowsAhead x_ahead(run.ctx, x, tiles.first(), loops_over_x(run, Pass::kForward));
  for (int s = 0; s < static_cast<int>(run.heads.stages.size()); ++s) {
    const Stage& stage = run.heads.stages[s];
    const RankStage& mine = stage.ranks[run.context.rank()];
    if (KeyValueTraffic(run, s, Pass::kForward).any())
      for (const Tile& tile : tiles) {
        Held n = normed(run, weights, x_ahead.at(tile));
        const TileAngles angles(run, batch, tile.rows);
        bring_key_values(run, weights, stage, kv, tile, n.tensor, angles.angles);
      }
    const std::vector<KeyValue> heads = kv.of(mine);

    for (const Tile& tile : tiles) {
      Held q = [&] {
        Held n = normed(run, weights, x_ahead.at(tile));
        const TileAngles angles(run, batch, tile.rows);
        return queries(run, weights, stage, n.tensor, angles.angles);
      }();
      Held o = hold(run, "attention output", q.tensor.shape());
      Held lse = hold(run.ctx, "attention lse", DType::kF32, {q.tensor.dim(0), tile.size()});
      for_each_block(run, mine, tile.rows, [&](const QueryBlock& block, auto part) {
        attention_forward(run.ctx, part(o.tensor), part(lse.tensor), part(q.tensor), heads,
                          {block.rows.begin, softmax_scale(run), batch.documents});
      });
      q.buffer.release();
      Held o_tokens = to_tokens(run, stage, o.tensor, nullptr);
      run.saved.output.save(run.ctx, slot, {tile.rows, columns_of(run, stage)}, o_tokens.tensor, o_tokens.buffer);
      const Range lse_at = lse_columns(run, s);
      if (!lse_at.empty())
        run.saved.lse.save(run.ctx, slot, {tile.rows, lse_at}, lse.tensor.reshape({tile.size(), lse_at.size()}),
                           lse.buffer);
    }
  }
}

void attention_pass_backward(const Execution& run, const RankBatch& batch, const Weights& weights,
                             GradientShards::Open& gradients, const RowSource& x, int slot, const Tensor& dx_TE) {
  Ctx& ctx = run.ctx;
  const int stages = static_cast<int>(run.heads.stages.size());
  Held dn = hold(run, "dn", dx_TE.shape(), Category::kHidden);
  TileLoop tiles(ctx, run.tokens, run.tiles.query);
  RowsAhead x_ahead(ctx, x, tiles.first(), loops_over_x(run, Pass::kBackward) + 1);
  {
    const KeyValueSlots kv(run, "k", "v", run.dtype());
    const KeyValueSlots dkv(run, "dk", "dv", DType::kF32);
    for (const char* name : {"k_proj.weight", "k_proj.bias", "v_proj.weight", "v_proj.bias"})
      if (auto gradient = gradients.find(name)) zero(ctx, *gradient);

    auto exchange_key_values = [&](const KeyValueTraffic& traffic) {
      for (const Tile& tile : tiles) {
        Held n = normed(run, weights, x_ahead.at(tile));
        const TileAngles angles(run, batch, tile.rows);
        if (traffic.departing)
          take_key_value_gradients_home(run, weights, gradients, *traffic.departing, dkv, tile, n.tensor, angles.angles,
                                        dn.tensor.rows(tile.rows));
        if (traffic.arriving) bring_key_values(run, weights, *traffic.arriving, kv, tile, n.tensor, angles.angles);
      }
    };

    for (int s = 0; s < stages; ++s) {
      const Stage& stage = run.heads.stages[s];
      const RankStage& mine = stage.ranks[run.context.rank()];
      const Range columns = columns_of(run, stage);
      if (const KeyValueTraffic traffic(run, s, Pass::kBackward); traffic.any()) exchange_key_values(traffic);
      for (const KeyValueMove& arrival : mine.arrivals) {
        zero(ctx, dkv.k[arrival.slot]);
        zero(ctx, dkv.v[arrival.slot]);
      }
      const std::vector<KeyValue> heads = kv.of(mine), d_heads = dkv.of(mine);
      const Tensor wq = weights["q_proj.weight"].rows(columns);
      const Tensor wo = weights["o_proj.weight"].slice(1, columns);
      const Range lse_at = lse_columns(run, s);

      RowsAhead o_ahead(ctx, RowSource(run.saved.output, slot, columns), tiles.first());
      // Ahead like the rest: a small copy that is asked for at its use waits behind the large ones for the next tile.
      std::optional<RowsAhead> lse_ahead;
      if (!lse_at.empty()) lse_ahead.emplace(ctx, RowSource(run.saved.lse, slot, lse_at), tiles.first());
      for (const Tile& tile : tiles) {
        Held n = normed(run, weights, x_ahead.at(tile));
        const TileAngles angles(run, batch, tile.rows);
        Held dq_tokens = [&] {
          Held q = queries(run, weights, stage, n.tensor, angles.angles);
          Held o = to_heads(run, stage, o_ahead.at(tile), nullptr);
          Held d_o = [&] {
            Held d_o_tokens = hold(run, "do", {tile.size(), columns.size()});
            linear_backward_input(ctx, d_o_tokens.tensor, dx_TE.rows(tile.rows), wo);
            return to_heads(run, stage, d_o_tokens.tensor, nullptr);
          }();
          Held dq = hold(run, "dq", q.tensor.shape());
          if (lse_ahead) {
            // A resident tile is strided; the exchange tile is contiguous.
            Held lse_tile = hold(ctx, "attention lse", DType::kF32, {tile.size(), lse_at.size()});
            copy(ctx, StreamKind::kCompute, lse_tile.tensor, lse_ahead->at(tile));
            const Tensor lse_NR = lse_tile.tensor.reshape({lse_at.size(), tile.size()});
            for_each_block(run, mine, tile.rows, [&](const QueryBlock& block, auto part) {
              attention_backward(ctx, part(dq.tensor), d_heads, part(d_o.tensor), part(q.tensor), part(o.tensor),
                                 part(lse_NR), heads, {block.rows.begin, softmax_scale(run), batch.documents});
            });
          }
          return to_tokens(run, stage, dq.tensor, &angles.angles);
        }();
        const Accumulate first_tile = tile.index == 0 ? Accumulate::kWrite : Accumulate::kAdd;
        linear_backward_weight(ctx, gradients.tensor("q_proj.weight").rows(columns),
                               rows_of(gradients.find("q_proj.bias"), columns), dq_tokens.tensor, n.tensor, first_tile);
        linear_backward_input(ctx, dn.tensor.rows(tile.rows), dq_tokens.tensor, wq,
                              s == 0 ? Accumulate::kWrite : Accumulate::kAdd);
      }
    }
    if (const KeyValueTraffic traffic(run, stages, Pass::kBackward); traffic.any()) exchange_key_values(traffic);
  }

  for (const Tile& tile : tiles) {
    auto dw = gradients["input_layernorm.weight"];
    rmsnorm_backward(ctx, dx_TE.rows(tile.rows), dw.tensor, dn.tensor.rows(tile.rows), x_ahead.at(tile),
                     weights["input_layernorm.weight"], run.model.norm_eps, dw.accumulate);
  }
}

}  // namespace untied
