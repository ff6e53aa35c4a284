#include "parallel/sharded_parameters.h"

namespace untied {

dim_t padded_size(const Unit& unit, int ranks) { return round_up(unit.size, dim_t{64} * ranks); }

std::vector<ShardPiece> shard_pieces(const ParameterTable& table, int unit, int rank, int ranks) {
  const Unit& u = table.units()[unit];
  const dim_t n = padded_size(u, ranks) / ranks;
  const Range shard{rank * n, (rank + 1) * n};
  std::vector<ShardPiece> pieces;
  for (int id : u.parameters) {
    const Parameter& p = table.parameters()[id];
    const Range here = intersect(shard, {p.offset, p.offset + p.shape.size()});
    if (!here.empty())
      pieces.push_back({id, {here.begin - shard.begin, here.end - shard.begin}, here.begin - p.offset});
  }
  return pieces;
}

ShardedParameters::ShardedParameters(Ctx& ctx, const ParameterTable& table, Communicator& world, DType working)
    : ctx_(ctx), table_(table), world_(world), dtype_(working) {
  for (const Unit& unit : table.units()) {
    const dim_t n = padded_size(unit, world.size()) / world.size();
    shards_.push_back(ctx.memory.take("weight shard", Category::kWeights, working, {n}));
    shards_.back().used_on(StreamKind::kComm);
    ctx.device.zero(StreamKind::kCompute, shards_.back().tensor(working, {n}));
  }
}

Tensor ShardedParameters::shard(int unit) const {
  return shards_[unit].tensor(dtype_, {padded_size(table_.units()[unit], world_.size()) / world_.size()});
}

void ShardedParameters::begin_walk(std::vector<int> units) {
  CHECK(next_ == walk_.size(), "a walk over the units was left at {} of {}", next_, walk_.size());
  walk_ = std::move(units);
  next_ = 0;
  ctx_.device.order(StreamKind::kCompute, StreamKind::kComm);
}

void ShardedParameters::abandon_walk() {
  walk_.clear();
  next_ = 0;
  ahead_ = {};
}

ShardedParameters::Gather ShardedParameters::gather(int unit) {
  Gather gather{unit,
                ctx_.memory.take("gathered unit", Category::kGathered, dtype_,
                                 {padded_size(table_.units()[unit], world_.size())}, StreamKind::kComm),
                {}};
  const Tensor full = gather.buffer.tensor(dtype_, {padded_size(table_.units()[unit], world_.size())});
  world_.all_gather(ctx_, StreamKind::kComm, full, shard(unit));
  gather.done = ctx_.device.record(StreamKind::kComm);
  return gather;
}

// A plan's loop over blocks leaves out those that are like the one before (memory/tiles.h). What was gathered ahead is then
// the same unit of another block.
void ShardedParameters::skip_to(int unit) {
  while (next_ < walk_.size() && walk_[next_] != unit) ++next_;
  if (ahead_.unit >= 0 && table_.units()[ahead_.unit].size == table_.units()[unit].size) ahead_.unit = unit;
}

ShardedParameters::Use ShardedParameters::use(int unit) {
  if (ctx_.is_meta()) skip_to(unit);
  CHECK(next_ < walk_.size() && walk_[next_] == unit, "{} is used out of the walk's order", table_.units()[unit].name);
  ++next_;
  Gather now = ahead_.unit == unit ? std::move(ahead_) : gather(unit);
  ahead_ = {};
  ctx_.device.wait(StreamKind::kCompute, now.done);
  now.buffer.used_on(StreamKind::kCompute);
  if (next_ < walk_.size()) ahead_ = gather(walk_[next_]);

  Use use;
  use.table_ = &table_;
  use.unit_ = unit;
  use.buffer_ = std::move(now.buffer);
  use.flat_ = use.buffer_.tensor(dtype_, {padded_size(table_.units()[unit], world_.size())});
  return use;
}

std::optional<Tensor> ShardedParameters::Use::find(const char* suffix) const {
  const int id = table_->in_unit(unit_, suffix);
  if (id < 0) return std::nullopt;
  const Parameter& p = table_->parameters()[id];
  return flat_.rows(p.offset, p.offset + p.shape.size()).reshape(p.shape);
}

Tensor ShardedParameters::Use::operator[](const char* suffix) const {
  auto tensor = find(suffix);
  CHECK(tensor, "{} has no parameter '{}'", table_->units()[unit_].name, suffix);
  return *tensor;
}

}  // namespace untied
