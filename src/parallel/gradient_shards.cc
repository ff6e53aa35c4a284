#include "parallel/gradient_shards.h"

#include "ops/elementwise.h"
#include "parallel/sharded_parameters.h"

namespace untied {

GradientShards::GradientShards(Ctx& ctx, const ParameterTable& table, Communicator& world, MemoryKind place,
                               std::vector<int> uses)
    : ctx_(ctx), table_(table), world_(world), place_(place), uses_(std::move(uses)) {
  Arena& arena = place == MemoryKind::kHost ? ctx.host : ctx.memory;
  for (const Unit& unit : table.units()) {
    shards_.push_back(arena.take("gradient shard", Category::kGradientShards, DType::kF32,
                                 {padded_size(unit, world.size()) / world.size()}));
    shards_.back().used_on(StreamKind::kComm);
    shards_.back().used_on(StreamKind::kToHost);
    shards_.back().used_on(StreamKind::kToDevice);
  }
  written_to_host_.resize(shards_.size());
  squares_ = ctx.memory.take("gradient norm", Category::kTiles, DType::kF64, {1});
}

Tensor GradientShards::shard(int unit) const {
  return shards_[unit].tensor(DType::kF32, {padded_size(table_.units()[unit], world_.size()) / world_.size()});
}

void GradientShards::begin_step(int micro_batches) {
  micro_batches_ = micro_batches;
  micro_batch_ = 0;
  zero(ctx_, sum_of_squares());
}

void GradientShards::begin_micro_batch() {
  if (micro_batch_ > 0) check_all_reduced();
  ++micro_batch_;
  reduced_.assign(shards_.size(), 0);
}

GradientShards::Open GradientShards::open(int unit) {
  const Unit& u = table_.units()[unit];
  const dim_t padded = padded_size(u, world_.size());
  Open open;
  open.table_ = &table_;
  open.unit_ = unit;
  open.buffer_ = ctx_.memory.take("unit gradients", Category::kGradients, DType::kF32, {padded});
  open.flat_ = open.buffer_.tensor(DType::kF32, {padded});
  open.written_.assign(u.parameters.size(), false);
  // Gaps between parameters and the tail reach the shards (and their norm): they are zeros.
  dim_t end = 0;
  for (int id : u.parameters) {
    const Parameter& p = table_.parameters()[id];
    if (p.offset > end) zero(ctx_, open.flat_.rows(end, p.offset));
    end = p.offset + p.shape.size();
  }
  if (padded > end) zero(ctx_, open.flat_.rows(end, padded));
  return open;
}

std::optional<Tensor> GradientShards::Open::find(const char* suffix) const {
  const int id = table_->in_unit(unit_, suffix);
  if (id < 0) return std::nullopt;
  const Parameter& p = table_->parameters()[id];
  return flat_.rows(p.offset, p.offset + p.shape.size()).reshape(p.shape);
}

Tensor GradientShards::Open::tensor(const char* suffix) const {
  auto tensor = find(suffix);
  CHECK(tensor, "{} has no parameter '{}'", table_->units()[unit_].name, suffix);
  return *tensor;
}

GradientShards::Open::Target GradientShards::Open::operator[](const char* suffix) {
  const int id = table_->in_unit(unit_, suffix);
  CHECK(id >= 0, "{} has no parameter '{}'", table_->units()[unit_].name, suffix);
  const std::vector<int>& ids = table_->units()[unit_].parameters;
  std::size_t at = 0;
  while (ids[at] != id) ++at;
  const Accumulate accumulate = written_[at] ? Accumulate::kAdd : Accumulate::kWrite;
  written_[at] = true;
  return {tensor(suffix), accumulate};
}

void GradientShards::reduce(Open unit) {
  settle();
  const int id = unit.unit_;
  const int count = ++reduced_[id];
  const bool first = micro_batch_ == 1 && count == 1;
  pending_.first = first;
  pending_.last = micro_batch_ == micro_batches_ && count == uses_[id];
  ctx_.device.order(StreamKind::kCompute, StreamKind::kComm);
  unit.buffer_.used_on(StreamKind::kComm);
  Tensor sum = shard(id);
  pending_.unit = id;
  if (!(first && place_ == MemoryKind::kDevice)) {
    pending_.buffer =
        ctx_.memory.take("reduced gradients", Category::kStaging, DType::kF32, sum.shape(), StreamKind::kComm);
    sum = pending_.buffer.tensor(DType::kF32, sum.shape());
  }
  world_.reduce_scatter(ctx_, StreamKind::kComm, sum, unit.flat_);
  pending_.done = ctx_.device.record(StreamKind::kComm);
}

void GradientShards::settle() {
  if (pending_.unit < 0) return;
  Pending now = std::move(pending_);
  pending_ = {};
  const Tensor kept = shard(now.unit);
  ctx_.device.wait(StreamKind::kCompute, now.done);
  Tensor sum = kept;
  if (now.buffer.defined()) {
    now.buffer.used_on(StreamKind::kCompute);
    sum = now.buffer.tensor(DType::kF32, kept.shape());
  }
  if (!now.first && place_ == MemoryKind::kDevice) {
    add(ctx_, kept, sum);
    sum = kept;
  } else if (!now.first) {
    Buffer before =
        ctx_.memory.take("gradients so far", Category::kStaging, DType::kF32, kept.shape(), StreamKind::kToDevice);
    before.used_on(StreamKind::kCompute);
    ctx_.device.wait(StreamKind::kToDevice, written_to_host_[now.unit]);
    copy(ctx_, StreamKind::kToDevice, before.tensor(DType::kF32, kept.shape()), kept);
    ctx_.device.order(StreamKind::kToDevice, StreamKind::kCompute);
    add(ctx_, sum, before.tensor(DType::kF32, kept.shape()));
  }
  if (now.last) untied::sum_of_squares(ctx_, sum_of_squares(), sum);
  if (place_ == MemoryKind::kHost) {
    ctx_.device.order(StreamKind::kCompute, StreamKind::kToHost);
    copy(ctx_, StreamKind::kToHost, kept, sum);
    now.buffer.used_on(StreamKind::kToHost);
    written_to_host_[now.unit] = ctx_.device.record(StreamKind::kToHost);
  }
}

void GradientShards::finish() {
  settle();
  CHECK(micro_batch_ == micro_batches_, "{} micro-batches of {}", micro_batch_, micro_batches_);
  check_all_reduced();
}

void GradientShards::check_all_reduced() const {
  if (ctx_.is_meta()) return;  // a plan leaves out blocks that are like others
  for (std::size_t unit = 0; unit < shards_.size(); ++unit)
    CHECK(reduced_[unit] == uses_[unit], "{}: {} reductions in a micro-batch, not {}", table_.units()[unit].name,
          reduced_[unit], uses_[unit]);
}

}  // namespace untied
