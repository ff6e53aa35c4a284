// One reserved block of memory, handed out by name. Deterministic: the same sequence of takes and releases gives the same
// addresses, so the meta backend's peak is the size the run reserves.
//
// A release does not wait for the device. It records, on each stream that used the buffer, where its last use ends; the next
// buffer placed there makes its own stream wait for those points.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include "base/place.h"
#include "device/device.h"

namespace untied {

enum class Category : std::uint8_t {
  kWeights,         // working shards
  kGathered,        // whole units, gathered for use
  kGradients,       // whole units, before they are reduced
  kGradientShards,  // fp32, this rank's part
  kOptimizer,       // master weights and moments
  kHidden,          // x, dx, dn: one row of E per token
  kKeyValues,       // k, v, dk, dv of a stage, whole sequence
  kSaved,           // what backward reads: block inputs, attention outputs
  kBatch,           // ids, targets, positions
  kTiles,           // everything of constant size that one tile needs
  kStaging,         // copies between host and device in flight
  kWorkspace,       // of library calls
  kCount
};
const char* name_of(Category category);
inline constexpr int kNumCategories = static_cast<int>(Category::kCount);

class Arena;

// A taken piece of an arena; released by the destructor.
class Buffer {
 public:
  Buffer() = default;
  Buffer(Buffer&& other) noexcept { *this = std::move(other); }
  Buffer& operator=(Buffer&& other) noexcept;
  ~Buffer() { release(); }

  bool defined() const { return arena_ != nullptr; }
  std::byte* data() const { return data_; }
  dim_t bytes() const { return bytes_; }                 // rounded up to the arena's alignment
  Tensor tensor(DType dtype, const Shape& shape) const;  // the first bytes of the buffer
  // Says that work on `stream` touches the buffer, besides the stream it was taken for.
  void used_on(StreamKind stream) { streams_ |= 1u << static_cast<int>(stream); }
  void release();

 private:
  friend class Arena;
  Arena* arena_ = nullptr;
  std::byte* data_ = nullptr;
  dim_t bytes_ = 0;
  std::uint64_t age_ = 0;     // counts the arena's takes
  std::uint8_t streams_ = 0;  // a bit for each that used it
  Category category_ = Category::kTiles;
};

struct Usage {
  std::array<dim_t, kNumCategories> bytes{};
  dim_t total() const;
};

class Arena {
 public:
  static constexpr dim_t kAlignment = 256;

  // capacity < 0: unlimited (planning). Otherwise reserves exactly `capacity` bytes of the device's memory.
  Arena(Device& device, MemoryKind kind, dim_t capacity);
  Arena(const Arena&) = delete;

  // The lowest free place that is large enough; `stream` waits for the place's last uses on other streams. Throws
  // OutOfMemoryError naming the buffer, the arena and what is in use.
  Buffer take(const char* name, Category category, dim_t bytes, StreamKind stream = StreamKind::kCompute);
  Buffer take(const char* name, Category category, DType dtype, const Shape& shape,
              StreamKind stream = StreamKind::kCompute) {
    return take(name, category, shape.size() * static_cast<dim_t>(size_of(dtype)), stream);
  }

  MemoryKind kind() const { return kind_; }
  dim_t capacity() const { return capacity_; }
  dim_t peak() const { return peak_; }  // highest address ever used: what a run must reserve
  const Usage& usage() const { return usage_; }
  const Usage& usage_at_peak() const { return usage_at_peak_; }
  const std::string& peak_at() const { return peak_at_; }
  // Where the program is, for peak_at and for error messages; see base/place.h.
  void set_place(const Place* place) { place_ = place; }
  // Of the live buffers' places and sizes, oldest first. Equal signatures mean that the same takes and releases from here on
  // get the same addresses. The order matters: where two buffers have swapped roles, the next release frees another place.
  std::uint64_t signature() const;

 private:
  friend class Buffer;
  struct Use {
    dim_t end;
    std::array<Event, kNumStreams> last;  // what must be over before the place is used again
  };
  struct Live {
    dim_t offset, size;
  };
  void give_back(Buffer& buffer) noexcept;
  void wait_for_uses(dim_t begin, dim_t end, StreamKind stream);
  [[noreturn]] void fail_take(const char* name, Category category, dim_t bytes) const;

  Device& device_;
  MemoryKind kind_;
  dim_t capacity_;
  std::byte* base_;
  std::map<dim_t, dim_t> free_;  // offset -> size; neighbours are merged
  // By offset, inside the free places and not merged with them: a small release does not make its whole surroundings wait.
  std::map<dim_t, Use> uses_;
  std::map<std::uint64_t, Live> live_;  // by age
  std::uint64_t takes_ = 0;
  dim_t peak_ = 0;
  Usage usage_, usage_at_peak_;
  std::string peak_at_;
  const Place* place_ = nullptr;
};

}  // namespace untied
