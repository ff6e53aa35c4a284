// A device as the rest of the program sees it: four streams, events, copies, memory. One object per rank.
//   meta  no data: memory is address arithmetic, every call returns at once
//   cpu   compute runs in the calling thread; copy streams may be lazy (see device/cpu.h), which makes a missing wait visible
//   cuda  four CUDA streams
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "tensor/tensor.h"

namespace untied {

enum class Backend : std::uint8_t { kMeta, kCpu, kCuda };
const char* name_of(Backend backend);

enum class StreamKind : std::uint8_t { kCompute, kComm, kToHost, kToDevice };
inline constexpr int kNumStreams = 4;
const char* name_of(StreamKind stream);

// A point in a stream's work. Default-constructed: already complete.
struct Event {
  StreamKind stream = StreamKind::kCompute;
  std::uint64_t sequence = 0;    // grows along a stream; 0: complete
  std::shared_ptr<void> handle;  // backend's own
  bool pending() const { return sequence != 0; }
};

enum class MemoryKind : std::uint8_t { kDevice, kHost };  // host memory is pinned where the backend can

class Device {
 public:
  virtual ~Device() = default;

  virtual Backend backend() const = 0;
  // The backend that sizes are for: backend() itself, or on meta the one that is planned.
  virtual Backend target() const { return backend(); }
  // Threads that one op of this rank may use (cpu).
  int threads() const { return threads_; }

  // What it is, for people and profiles: "NVIDIA H200".
  virtual std::string name() const { return name_of(backend()); }

  // One block per arena, freed with the device; on meta only an address. Throws OutOfMemoryError, naming the kind of memory.
  virtual std::byte* reserve(MemoryKind kind, dim_t bytes) = 0;
  // Told now and then while a reserve of host memory goes on (pinning takes a second for some GiB), if set.
  std::function<void(dim_t done, dim_t of)> on_reserve;

  // The end of what is queued on `stream` so far. A later event of a stream implies all earlier ones.
  virtual Event record(StreamKind stream) = 0;
  virtual void wait(StreamKind waiter, const Event& event) = 0;
  virtual void synchronize() = 0;

  // dst = src: same dtype and shape, any strides with a contiguous last dimension, any mix of device and host memory.
  virtual void copy(StreamKind stream, const Tensor& dst, const Tensor& src) = 0;
  virtual void zero(StreamKind stream, const Tensor& dst) = 0;

  // For profiles: a point in a stream's work that knows when it was reached, and the seconds from one to another of the same device,
  // both over by now. The host's clock at the call, unless a backend knows better.
  using TimeMark = std::shared_ptr<void>;
  virtual TimeMark mark(StreamKind stream);
  virtual double seconds_between(const TimeMark& begin, const TimeMark& end);

  // Work queued on `to` from now on sees all that is queued on `from` so far.
  void order(StreamKind from, StreamKind to) {
    if (from != to) wait(to, record(from));
  }

 protected:
  // What copy and zero may be called with.
  static void check_rows(const Tensor& t);
  static void check_copy(const Tensor& dst, const Tensor& src);

  int threads_ = 1;
};

std::unique_ptr<Device> make_meta_device(Backend target, int threads);

}  // namespace untied
