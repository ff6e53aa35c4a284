// What every op, pass and collective is called with: where to run, where memory comes from, what to record.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/place.h"
#include "memory/arena.h"

namespace untied {

// Work counted by the ops' front halves, on every backend alike.
struct Trace {
  double flops = 0;         // useful floating-point operations
  double bytes_moved = 0;   // device memory traffic
  double bytes_sent = 0;    // to other ranks
  double bytes_copied = 0;  // between host and device
  std::int64_t ops = 0;
};

// What ran when: each op, copy and collective while a context is being profiled (memory/profile.h sums it up). Marks are queued
// with the work, so nothing waits for them and what overlaps still does.
struct Profile {
  struct Span {
    const char* op;
    StreamKind stream;
    Device::TimeMark begin, end;
  };
  std::vector<Span> spans;
};

struct Ctx {
  Device& device;
  Arena& memory;  // device memory
  Arena& host;    // pinned host memory
  Trace& trace;
  Place& place;                // "backward, block 3, attention": for peaks, progress and errors
  bool every_tile = false;     // meta: tile loops run every tile instead of jumping (tests compare the two)
  Profile* profile = nullptr;  // null: ops are not timed

  bool is_meta() const { return device.backend() == Backend::kMeta; }
};

// Says where the program is, until the next one.
template <class... Args>
void enter(Ctx& ctx, fmt::format_string<Args...> text, Args&&... args) {
  ctx.place.set(fmt::format(text, std::forward<Args>(args)...));
}

// Marks what is queued while it lives, if the context is being profiled.
class OpTimer {
 public:
  OpTimer(Ctx& ctx, const char* op, StreamKind stream) : ctx_(ctx), op_(op), stream_(stream) {
    if (ctx_.profile) begin_ = ctx_.device.mark(stream_);
  }
  OpTimer(const OpTimer&) = delete;
  ~OpTimer() {
    if (ctx_.profile) stop();
  }

 private:
  void stop();
  Ctx& ctx_;
  const char* const op_;
  const StreamKind stream_;
  Device::TimeMark begin_;
};

// One rank's device, memory and counters, with the Ctx that ties them together. capacity < 0 plans.
class RankMemory {
 public:
  RankMemory(std::unique_ptr<Device> device, dim_t device_capacity, dim_t host_capacity)
      : device_(std::move(device)), memory_(*device_, MemoryKind::kDevice, device_capacity),
        host_(*device_, MemoryKind::kHost, host_capacity), ctx_{*device_, memory_, host_, trace_, place_} {
    memory_.set_place(&place_);
    host_.set_place(&place_);
  }
  Ctx& ctx() { return ctx_; }

 private:
  std::unique_ptr<Device> device_;
  Place place_;
  Trace trace_;
  Arena memory_, host_;
  Ctx ctx_;
};

// dst = src on a copy stream (or compute), counted.
void copy(Ctx& ctx, StreamKind stream, const Tensor& dst, const Tensor& src);

}  // namespace untied
