#include "memory/store.h"

#include <algorithm>

namespace untied {
namespace {

std::string text(const Region& r) {
  return format("rows [{}, {}), columns [{}, {})", r.rows.begin, r.rows.end, r.columns.begin, r.columns.end);
}

bool inside(Range r, dim_t size) { return 0 <= r.begin && r.begin <= r.end && r.end <= size; }

// Adds a range to a sorted list of ranges that neither overlap nor touch.
void add_range(std::vector<Range>& ranges, Range range) {
  if (range.empty()) return;
  auto first = std::find_if(ranges.begin(), ranges.end(), [&](Range r) { return r.end >= range.begin; });
  auto last = first;
  for (; last != ranges.end() && last->begin <= range.end; ++last)
    range = {std::min(range.begin, last->begin), std::max(range.end, last->end)};
  ranges.insert(ranges.erase(first, last), range);
}

bool contains(const std::vector<Range>& ranges, Range range) {
  return range.empty() ||
         std::any_of(ranges.begin(), ranges.end(), [&](Range r) { return intersect(r, range) == range; });
}

}  // namespace

const char* name_of(Tier tier) { return tier == Tier::kDevice ? "device" : "host"; }

Fetched& Fetched::operator=(Fetched&& other) noexcept {
  staging_ = std::move(other.staging_);
  view_ = std::exchange(other.view_, {});
  filled_ = std::exchange(other.filled_, {});
  return *this;
}

Tensor Fetched::tensor(Ctx& ctx) {
  CHECK(defined(), "nothing was fetched");
  if (staging_.defined()) {
    ctx.device.wait(StreamKind::kCompute, filled_);
    staging_.used_on(StreamKind::kCompute);
  }
  return view_;
}

SavedTensor::SavedTensor(Ctx& ctx, Tier tier, const char* name, int slots, DType dtype, dim_t rows, dim_t columns)
    : name_(name), tier_(tier), dtype_(dtype), rows_(rows), columns_(columns), slots_(slots) {
  const dim_t bytes = Shape({rows, columns}).size() * static_cast<dim_t>(size_of(dtype));
  slot_bytes_ = round_up(bytes, Arena::kAlignment);
  if (tier == Tier::kDevice) {
    buffer_ = ctx.memory.take(name_.c_str(), Category::kSaved, slots * slot_bytes_);
  } else {
    buffer_ = ctx.host.take(name_.c_str(), Category::kSaved, slots * slot_bytes_, StreamKind::kToHost);
    buffer_.used_on(StreamKind::kToDevice);
  }
}

void SavedTensor::begin_step() {
  for (Slot& slot : slots_) slot.rows.clear();
}

Event SavedTensor::save(Ctx& ctx, int slot, const Region& region, const Tensor& src) {
  Slot& at = slot_at(slot, region);
  add_range(at.rows, region.rows);
  const Tensor dst = view(slot, region);
  if (tier_ == Tier::kDevice) {
    copy(ctx, StreamKind::kCompute, dst, src);
    return {};
  }
  ctx.device.order(StreamKind::kCompute, StreamKind::kToHost);
  ctx.device.wait(StreamKind::kToHost, at.fetched);
  copy(ctx, StreamKind::kToHost, dst, src);
  at.saved = ctx.device.record(StreamKind::kToHost);
  return at.saved;
}

void SavedTensor::save(Ctx& ctx, int slot, const Region& region, const Tensor& src, Buffer& holder) {
  CHECK(holder.defined() && holder.data() <= src.raw() && src.raw() < holder.data() + holder.bytes(),
        "'{}' is saved from a tensor that is not in the buffer named as its holder", name_);
  if (tier_ == Tier::kHost) holder.used_on(StreamKind::kToHost);
  (void)save(ctx, slot, region, src);
}

Fetched SavedTensor::fetch(Ctx& ctx, int slot, const Region& region) {
  Slot& at = slot_at(slot, region);
  // Not on meta, where loops jump over tiles. Rows only: a slot's columns are saved and fetched by the same loops.
  CHECK(ctx.is_meta() || contains(at.rows, region.rows), "'{}' slot {}: {} were not saved in this step", name_, slot,
        text(region));
  if (tier_ == Tier::kDevice) return Fetched(view(slot, region));

  const Shape shape{region.rows.size(), region.columns.size()};
  Buffer staging = ctx.memory.take(name_.c_str(), Category::kStaging, dtype_, shape, StreamKind::kToDevice);
  const Tensor near = staging.tensor(dtype_, shape);
  ctx.device.wait(StreamKind::kToDevice, at.saved);
  copy(ctx, StreamKind::kToDevice, near, view(slot, region));
  at.fetched = ctx.device.record(StreamKind::kToDevice);
  return Fetched(std::move(staging), near, at.fetched);
}

SavedTensor::Slot& SavedTensor::slot_at(int slot, const Region& region) {
  CHECK(defined(), "saving to, or fetching from, a SavedTensor without memory");
  CHECK(slot >= 0 && slot < slots(), "'{}' has {} slots, no slot {}", name_, slots(), slot);
  CHECK(inside(region.rows, rows_) && inside(region.columns, columns_), "'{}' is [{}, {}]; no {}", name_, rows_,
        columns_, text(region));
  return slots_[slot];
}

Tensor SavedTensor::view(int slot, const Region& region) const {
  const Tensor whole(buffer_.data() + slot * slot_bytes_, dtype_, {rows_, columns_});
  return whole.slice(0, region.rows).slice(1, region.columns);
}

}  // namespace untied
