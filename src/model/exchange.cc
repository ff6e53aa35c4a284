#include "model/exchange.h"

#include <numeric>

namespace untied {
namespace {

const RankStage& mine(const Execution& run, const Stage& stage) { return stage.ranks[run.context.rank()]; }

std::vector<int> identity(dim_t n) {
  std::vector<int> order(n);
  std::iota(order.begin(), order.end(), 0);
  return order;
}

// Piece p of a token-side tile [n, R, D]: the heads of rank p.
std::vector<Tensor> by_owner(const Stage& stage, const Tensor& heads_NRD) {
  std::vector<Tensor> pieces;
  for (const RankStage& rank : stage.ranks)
    pieces.push_back(rank.heads.empty()
                         ? Tensor()
                         : heads_NRD.rows(rank.heads.begin - stage.heads.begin, rank.heads.end - stage.heads.begin));
  return pieces;
}

// Piece p of a head-side tile [P * h, R, D]: the rows of rank p.
std::vector<Tensor> by_source(int ranks, dim_t h, const Tensor& heads_NRD) {
  std::vector<Tensor> pieces(ranks);
  if (h == 0) return pieces;
  for (int p = 0; p < ranks; ++p) pieces[p] = heads_NRD.rows(p * h, (p + 1) * h);
  return pieces;
}

}  // namespace

TileAngles::TileAngles(const Execution& run, const RankBatch& batch, Range rows)
    : cos(hold(run.ctx, "rope cos", DType::kF32, {rows.size(), run.model.head_dim / 2})),
      sin(hold(run.ctx, "rope sin", DType::kF32, {rows.size(), run.model.head_dim / 2})), angles{cos.tensor,
                                                                                                 sin.tensor} {
  rope_angles(run.ctx, cos.tensor, sin.tensor, batch.positions_T.rows(rows), run.rope);
}

Held to_heads(const Execution& run, const Stage& stage, const Tensor& tokens_RH, const RopeAngles* angles) {
  const dim_t R = tokens_RH.dim(0), D = run.model.head_dim, h = mine(run, stage).heads.size();
  const int P = run.context.size();
  Held send = hold(run, "heads to send", {stage.heads.size(), R, D});
  heads_pack(run.ctx, send.tensor, tokens_RH, identity(stage.heads.size()), angles);
  Held received = hold(run, "heads received", {P * h, R, D});
  run.context.all_to_all(run.ctx, StreamKind::kCompute, by_owner(stage, send.tensor), by_source(P, h, received.tensor));
  return received;
}

Held to_tokens(const Execution& run, const Stage& stage, const Tensor& heads_NRD, const RopeAngles* angles) {
  const dim_t R = heads_NRD.dim(1), D = run.model.head_dim, h = mine(run, stage).heads.size();
  Held home = hold(run, "heads come home", {stage.heads.size(), R, D});
  run.context.all_to_all(run.ctx, StreamKind::kCompute, by_source(run.context.size(), h, heads_NRD),
                         by_owner(stage, home.tensor));
  Held tokens = hold(run, "heads of tokens", {R, stage.heads.size() * D});
  heads_unpack(run.ctx, tokens.tensor, home.tensor, identity(stage.heads.size()), angles);
  return tokens;
}

void send_key_values(const Execution& run, const Stage& stage, Range rows, const Tensor& tokens_RH,
                     std::span<const Tensor> slots, const RopeAngles* angles) {
  const KeyValueExchange& exchange = stage.arrivals;
  const dim_t T = run.tokens, D = run.model.head_dim;
  const int P = run.context.size();
  Held send = hold(run, "key/values to send", {static_cast<dim_t>(exchange.source.size()), rows.size(), D});
  heads_pack(run.ctx, send.tensor, tokens_RH, exchange.source, angles);
  const std::vector<KeyValueMove>& arrivals = mine(run, stage).arrivals;
  for (int round = 0; round < exchange.rounds; ++round) {
    std::vector<Tensor> to(P), from(P);
    for (int p = 0; p < P; ++p) {
      const int piece = exchange.first_piece[p] + round;
      if (piece < exchange.first_piece[p + 1]) to[p] = send.tensor.index(piece);
      if (round < static_cast<int>(arrivals.size()))
        from[p] = slots[arrivals[round].slot].rows(p * T + rows.begin, p * T + rows.end);
    }
    run.context.all_to_all(run.ctx, StreamKind::kCompute, to, from);
  }
}

Held gather_key_value_gradients(const Execution& run, const Stage& stage, Range rows, std::span<const Tensor> slots,
                                const RopeAngles* angles) {
  const KeyValueExchange& exchange = stage.departures;
  const dim_t T = run.tokens, D = run.model.head_dim;
  const int P = run.context.size();
  Held home = hold(run.ctx, "key/value gradients come home", DType::kF32,
                   {static_cast<dim_t>(exchange.source.size()), rows.size(), D});
  const std::vector<KeyValueMove>& departures = mine(run, stage).departures;
  for (int round = 0; round < exchange.rounds; ++round) {
    std::vector<Tensor> to(P), from(P);
    for (int p = 0; p < P; ++p) {
      if (round < static_cast<int>(departures.size()))
        to[p] = slots[departures[round].slot].rows(p * T + rows.begin, p * T + rows.end);
      const int piece = exchange.first_piece[p] + round;
      if (piece < exchange.first_piece[p + 1]) from[p] = home.tensor.index(piece);
    }
    run.context.all_to_all(run.ctx, StreamKind::kCompute, to, from);
  }
  Held tokens = hold(run, "key/value gradients of tokens", {rows.size(), exchange.distinct * D});
  heads_unpack(run.ctx, tokens.tensor, home.tensor, exchange.source, angles);
  return tokens;
}

}  // namespace untied
