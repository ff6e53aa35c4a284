// Saved activations: what forward leaves for backward, on the device or in pinned host memory, behind one vocabulary.
//
//   Event copied = saved.save(ctx, block, {rows, columns}, x);   // forward; x may change once compute has waited for `copied`
//   Fetched next = saved.fetch(ctx, block, {rows, columns});     // backward, a tile ahead of its use
//   Tensor x = next.tensor(ctx);                                 // compute waits here; the view lives as long as `next`
//
// Every order that follows from a slot's contents is kept here: a fetch sees the saves before it, a save waits for the fetches
// before it, and staging is not reused before the copy into it and the work that reads it are over.
#pragma once

#include <string>
#include <vector>

#include "memory/context.h"

namespace untied {

enum class Tier : std::uint8_t { kDevice, kHost };
const char* name_of(Tier tier);

// A rectangle of a [rows, columns] tensor.
struct Region {
  Range rows, columns;
};

// Rows near the compute stream: a view of what is there already, or staging that a copy is filling. Releases on destruction.
class Fetched {
 public:
  Fetched() = default;
  explicit Fetched(const Tensor& resident) : view_(resident) {}
  Fetched(Buffer staging, const Tensor& view, const Event& filled)
      : staging_(std::move(staging)), view_(view), filled_(filled) {}
  Fetched(Fetched&& other) noexcept { *this = std::move(other); }
  Fetched& operator=(Fetched&& other) noexcept;

  bool defined() const { return view_.defined(); }
  // The data, for work on the compute stream from here on.
  Tensor tensor(Ctx& ctx);
  // Says that another stream, which the caller has ordered behind compute, reads the data too.
  void used_on(StreamKind stream) { staging_.used_on(stream); }

 private:
  Buffer staging_;
  Tensor view_;
  Event filled_;
};

// `slots` equal tensors [rows, columns], in one buffer of the tier.
class SavedTensor {
 public:
  SavedTensor() = default;
  SavedTensor(Ctx& ctx, Tier tier, const char* name, int slots, DType dtype, dim_t rows, dim_t columns);

  bool defined() const { return buffer_.defined(); }
  Tier tier() const { return tier_; }
  DType dtype() const { return dtype_; }
  int slots() const { return static_cast<int>(slots_.size()); }
  dim_t rows() const { return rows_; }
  dim_t columns() const { return columns_; }

  // From here on only rows that are saved anew may be fetched.
  void begin_step();

  // slot[region] = src, a 2-D view of device memory that compute has written. The compute stream has to wait for the event
  // before anything writes to src or its buffer is released.
  [[nodiscard]] Event save(Ctx& ctx, int slot, const Region& region, const Tensor& src);
  // The same for a src in `holder`, which is written no more: `holder` may be released at once, and whoever is placed there next
  // waits for the copy.
  void save(Ctx& ctx, int slot, const Region& region, const Tensor& src, Buffer& holder);

  // slot[region]: on the device tier a (strided) view of the slot, on the host tier contiguous staging of the device's arena.
  Fetched fetch(Ctx& ctx, int slot, const Region& region);

 private:
  struct Slot {
    Event saved, fetched;     // the last of each (host tier)
    std::vector<Range> rows;  // saved in this step: sorted, apart
  };
  Slot& slot_at(int slot, const Region& region);
  Tensor view(int slot, const Region& region) const;

  std::string name_;
  Tier tier_ = Tier::kDevice;
  DType dtype_ = DType::kF32;
  dim_t rows_ = 0, columns_ = 0, slot_bytes_ = 0;
  Buffer buffer_;
  std::vector<Slot> slots_;
};

}  // namespace untied
