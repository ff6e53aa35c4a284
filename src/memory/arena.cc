#include "memory/arena.h"

#include <algorithm>
#include <limits>

namespace untied {
namespace {

// A stream's later event implies its earlier ones, so one for each stream is enough.
void keep_later(std::array<Event, kNumStreams>& into, const std::array<Event, kNumStreams>& from) {
  for (int s = 0; s < kNumStreams; ++s)
    if (from[s].sequence > into[s].sequence) into[s] = from[s];
}

std::string bytes_text(dim_t bytes) { return format_bytes(static_cast<double>(bytes)); }

}  // namespace

const char* name_of(Category category) {
  switch (category) {
    case Category::kWeights: return "weights";
    case Category::kGathered: return "gathered_weights";
    case Category::kGradients: return "gradients";
    case Category::kGradientShards: return "gradient_shards";
    case Category::kOptimizer: return "optimizer";
    case Category::kHidden: return "hidden_states";
    case Category::kKeyValues: return "keys_values";
    case Category::kSaved: return "saved_activations";
    case Category::kBatch: return "batch";
    case Category::kTiles: return "tiles";
    case Category::kStaging: return "staging";
    case Category::kWorkspace: return "workspace";
    case Category::kCount: break;
  }
  return "?";
}

dim_t Usage::total() const {
  dim_t sum = 0;
  for (dim_t b : bytes) sum += b;
  return sum;
}

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  if (this != &other) {
    release();
    arena_ = std::exchange(other.arena_, nullptr);
    data_ = other.data_;
    bytes_ = other.bytes_;
    age_ = other.age_;
    streams_ = other.streams_;
    category_ = other.category_;
  }
  return *this;
}

void Buffer::release() {
  if (arena_) std::exchange(arena_, nullptr)->give_back(*this);
}

Tensor Buffer::tensor(DType dtype, const Shape& shape) const {
  CHECK(defined(), "{}{} in a buffer that was never taken, or released", name_of(dtype), shape.str());
  CHECK(shape.size() * static_cast<dim_t>(size_of(dtype)) <= bytes_, "{}{} does not fit a buffer of {} bytes",
        name_of(dtype), shape.str(), bytes_);
  return Tensor(data_, dtype, shape);
}

Arena::Arena(Device& device, MemoryKind kind, dim_t capacity)
    : device_(device), kind_(kind), capacity_(capacity < 0 ? std::numeric_limits<dim_t>::max() / 2 : capacity) {
  CHECK(capacity >= 0 || device.backend() == Backend::kMeta, "only a plan may be unlimited");
  base_ = device.reserve(kind, capacity_);
  if (capacity_ > 0) free_[0] = capacity_;
}

Buffer Arena::take(const char* name, Category category, dim_t bytes, StreamKind stream) {
  CHECK(bytes >= 0, "{}: {} bytes", name, bytes);
  const dim_t size = round_up(bytes > 0 ? bytes : 1, kAlignment);
  // A linear search: neighbours merge, so there are never more free places than live buffers, usually a handful.
  auto place = free_.begin();
  while (place != free_.end() && place->second < size) ++place;
  if (place == free_.end()) fail_take(name, category, bytes);
  const dim_t offset = place->first;
  auto rest = free_.extract(place);
  if (rest.mapped() > size) {
    rest.key() += size;
    rest.mapped() -= size;
    free_.insert(std::move(rest));
  }
  wait_for_uses(offset, offset + size, stream);

  usage_.bytes[static_cast<int>(category)] += size;
  if (offset + size > peak_) {
    peak_ = offset + size;
    usage_at_peak_ = usage_;
    if (place_) peak_at_ = place_->text();
  }
  Buffer buffer;
  buffer.arena_ = this;
  buffer.data_ = base_ + offset;
  buffer.bytes_ = size;
  buffer.age_ = ++takes_;
  buffer.category_ = category;
  buffer.used_on(stream);
  live_.emplace_hint(live_.end(), buffer.age_, Live{offset, size});
  return buffer;
}

// The range starts where a free place does, so no use begins before it and reaches into it.
void Arena::wait_for_uses(dim_t begin, dim_t end, StreamKind stream) {
  std::array<Event, kNumStreams> last{};
  for (auto use = uses_.lower_bound(begin); use != uses_.end() && use->first < end;) {
    keep_later(last, use->second.last);
    auto node = uses_.extract(use++);
    if (node.mapped().end > end) {  // the rest keeps its events, for whoever takes it next
      node.key() = end;
      uses_.insert(std::move(node));
    }
  }
  for (const Event& event : last)
    if (event.pending() && event.stream != stream) device_.wait(stream, event);
}

void Arena::fail_take(const char* name, Category category, dim_t bytes) const {
  std::string in_use;
  for (int c = 0; c < kNumCategories; ++c)
    if (usage_.bytes[c] > 0)
      in_use += format("{}{} {}", in_use.empty() ? ": " : ", ", name_of(static_cast<Category>(c)),
                       bytes_text(usage_.bytes[c]));
  dim_t largest = 0;
  for (const auto& [offset, size] : free_) largest = std::max(largest, size);
  const std::string where = place_ && !place_->text().empty() ? " in " + place_->text() : "";
  throw OutOfMemoryError("{} memory: no room for '{}' ({} of {}){}; {} of {} in use{}; the largest free piece is {}",
                         kind_ == MemoryKind::kHost ? "pinned host" : "device", name, bytes_text(bytes),
                         name_of(category), where, bytes_text(usage_.total()), bytes_text(capacity_), in_use,
                         bytes_text(largest));
}

void Arena::give_back(Buffer& buffer) noexcept {
  usage_.bytes[static_cast<int>(buffer.category_)] -= buffer.bytes_;
  live_.erase(buffer.age_);
  dim_t begin = buffer.data_ - base_, end = begin + buffer.bytes_;
  Use use{end, {}};
  bool pending = false;
  try {
    for (int s = 0; s < kNumStreams; ++s)
      if (buffer.streams_ >> s & 1) {
        use.last[s] = device_.record(static_cast<StreamKind>(s));
        pending |= use.last[s].pending();
      }
  } catch (const Error&) {
    // Only a device that has failed cannot record. The run is ending with that error; unwinding must get through here.
  }
  if (pending) uses_.emplace(begin, std::move(use));

  auto next = free_.lower_bound(begin);
  if (next != free_.end() && next->first == end) {
    end += next->second;
    next = free_.erase(next);
  }
  const auto before = next == free_.begin() ? free_.end() : std::prev(next);
  if (before != free_.end() && before->first + before->second == begin) before->second += end - begin;
  else free_.emplace_hint(next, begin, end - begin);
}

std::uint64_t Arena::signature() const {
  std::uint64_t hash = 1469598103934665603u;  // FNV-1a over words
  for (const auto& [age, piece] : live_) {
    hash = (hash ^ static_cast<std::uint64_t>(piece.offset)) * 1099511628211u;
    hash = (hash ^ static_cast<std::uint64_t>(piece.size)) * 1099511628211u;
  }
  return hash;
}

}  // namespace untied
