// What every op, pass and collective is called with: where to run, where memory comes from, what to record.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <string>

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

// Where a step's time goes, by op, when each op is waited for: what overlaps in a real step adds up here.
struct Profile {
  struct Op {
    std::int64_t calls = 0;
    double seconds = 0;
  };
  std::map<std::string, Op> ops;
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

// Times what is queued while it lives, if the context is being profiled.
class OpTimer {
 public:
  using Clock = std::chrono::steady_clock;
  OpTimer(Ctx& ctx, const char* op) : ctx_(ctx), op_(op) {
    if (!ctx_.profile) return;
    ctx_.device.synchronize();
    start_ = Clock::now();
  }
  OpTimer(const OpTimer&) = delete;
  ~OpTimer() {
    if (ctx_.profile) stop();
  }

 private:
  void stop();
  Ctx& ctx_;
  const char* const op_;
  Clock::time_point start_;
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
