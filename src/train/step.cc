#include "train/step.h"

#include <algorithm>
#include <cmath>

#include "model/model.h"
#include "ops/elementwise.h"

namespace untied {
namespace {

// dst[i] = src[row i of this rank], `padding` beyond the sequence.
void shard_rows(std::int32_t* dst, const std::vector<std::int32_t>& src, Range rows, std::int32_t padding) {
  const dim_t S = static_cast<dim_t>(src.size());
  for (dim_t row = rows.begin; row < rows.end; ++row) dst[row - rows.begin] = row < S ? src[row] : padding;
}

Tensor scalar(const RankState& rank, int i) { return rank.scalars.tensor.rows(i, i + 1); }

// Sums the step's scalars over the ranks and brings them to the host.
const double* reduced_scalars(RankState& rank) {
  Ctx& ctx = rank.ctx();
  rank.world->all_reduce(ctx, StreamKind::kCompute, rank.scalars.tensor);
  ctx.device.order(StreamKind::kCompute, StreamKind::kToHost);
  copy(ctx, StreamKind::kToHost, rank.scalars_host.tensor, rank.scalars.tensor);
  ctx.device.synchronize();
  rank.world->check();
  return rank.scalars_host.tensor.as<double>();
}

// scalars[range) = values, from the host.
void set_scalars(RankState& rank, Range range, double value) {
  Ctx& ctx = rank.ctx();
  ctx.device.synchronize();
  if (!ctx.is_meta()) std::fill_n(rank.scalars_host.tensor.as<double>() + range.begin, range.size(), value);
  copy(ctx, StreamKind::kToDevice, rank.scalars.tensor.rows(range), rank.scalars_host.tensor.rows(range));
  ctx.device.order(StreamKind::kToDevice, StreamKind::kCompute);
}

constexpr Range kAllScalars{0, 3}, kStopScalar{2, 3};

}  // namespace

RankBatch upload(RankState& rank, const Sequence* sequence) {
  Ctx& ctx = rank.ctx();
  const dim_t T = rank.layout.tokens, S = T * rank.layout.ulysses;
  const Tensor staging = rank.batch_staging.tensor;
  ctx.device.synchronize();  // the staging and the batch before it may be in use
  RankBatch batch{rank.ids.tensor, rank.targets.tensor, rank.positions.tensor, {0}};
  if (sequence) {
    const Range rows{rank.world->rank() * T, (rank.world->rank() + 1) * T};
    shard_rows(staging.index(0).as<std::int32_t>(), sequence->ids, rows, 0);
    shard_rows(staging.index(1).as<std::int32_t>(), sequence->targets, rows, kIgnored);
    shard_rows(staging.index(2).as<std::int32_t>(), sequence->positions, rows, 0);
    batch.documents = sequence->document_starts;
    // Rows that only make the shards equal are a document of their own.
    const dim_t length = static_cast<dim_t>(sequence->ids.size());
    if (length < S) batch.documents.push_back(length);
  }
  copy(ctx, StreamKind::kToDevice, batch.ids_T, staging.index(0));
  copy(ctx, StreamKind::kToDevice, batch.targets_T, staging.index(1));
  copy(ctx, StreamKind::kToDevice, batch.positions_T, staging.index(2));
  ctx.device.order(StreamKind::kToDevice, StreamKind::kCompute);
  return batch;
}

StepStats train_step(RankState& rank, std::span<const std::shared_ptr<const Sequence>> micro_batches,
                     const StepOptions& options) {
  Ctx& ctx = rank.ctx();
  Execution run = rank.execution();
  dim_t valid = 0;
  for (const auto& sequence : micro_batches) valid += sequence ? sequence->valid_targets : 1;
  CHECK(valid > 0, "a step without a valid target");

  set_scalars(rank, kAllScalars, 0);
  rank.gradients.begin_step(static_cast<int>(micro_batches.size()));
  run.between_blocks = options.between_blocks;
  try {
    for (const auto& sequence : micro_batches)
      forward_backward(run, upload(rank, sequence.get()), scalar(rank, 0), 1.0 / static_cast<double>(valid));
  } catch (const StepAbandoned&) {
    rank.weights.abandon_walk();
    rank.gradients.abandon_step();
    throw;
  }
  rank.gradients.finish();
  copy(ctx, StreamKind::kCompute, scalar(rank, 1), rank.gradients.sum_of_squares());
  set_scalars(rank, kStopScalar, options.asks_to_stop() ? 1 : 0);

  const double* sums = reduced_scalars(rank);
  StepStats stats;
  if (!ctx.is_meta()) {
    stats.loss = sums[0] / static_cast<double>(valid);
    stats.grad_norm = std::sqrt(sums[1]);
    stats.stop = sums[2] > 0;
    if (!std::isfinite(stats.loss) || !std::isfinite(stats.grad_norm))
      throw NotFiniteError("step {}: loss {} and gradient norm {} are not both finite; the weights are as they were",
                           options.adamw.step, stats.loss, stats.grad_norm);
  }
  if (options.update) {
    AdamWStep adamw = options.adamw;
    if (options.clip > 0) adamw.gradient_scale = std::min(1.0, options.clip / (stats.grad_norm + 1e-6));
    rank.optimizer.step(ctx, rank.weights, rank.gradients, adamw);
    ctx.device.synchronize();  // a step ends when it has, and a fault in it is this step's
    rank.world->check();
  }
  return stats;
}

double evaluate(RankState& rank, const Sequence* sequence) {
  Execution run = rank.execution();
  set_scalars(rank, kAllScalars, 0);
  forward_loss(run, upload(rank, sequence), scalar(rank, 0));
  const double* sums = reduced_scalars(rank);
  return rank.ctx().is_meta() ? 0 : sums[0];
}

}  // namespace untied
