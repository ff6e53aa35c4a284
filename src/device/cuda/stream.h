// The cuda device as code with CUDA types sees it: streams, what the GPU is, and a place for what lives as long as the device.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <memory>
#include <utility>
#include <vector>

#include "device/device.h"

namespace untied {

class CudaDevice final : public Device {
 public:
  explicit CudaDevice(int gpu);
  ~CudaDevice() override;
  CudaDevice(const CudaDevice&) = delete;

  Backend backend() const override { return Backend::kCuda; }
  std::string name() const override;
  std::byte* reserve(MemoryKind kind, dim_t bytes) override;
  Event record(StreamKind stream) override;
  void wait(StreamKind waiter, const Event& event) override;
  void synchronize() override;
  void copy(StreamKind stream, const Tensor& dst, const Tensor& src) override;
  void zero(StreamKind stream, const Tensor& dst) override;
  TimeMark mark(StreamKind stream) override;
  double seconds_between(const TimeMark& begin, const TimeMark& end) override;

  int gpu() const { return gpu_; }
  int multiprocessors() const { return multiprocessors_; }
  int shared_memory() const { return shared_memory_; }  // bytes that one block may ask for
  cudaStream_t stream(StreamKind kind) const { return streams_[static_cast<int>(kind)]; }
  // The calling thread's CUDA calls go to this GPU from here on.
  void make_current() const;

  // The device's one T (library handles, say), made at the first call; destroyed before the streams, when they are idle.
  template <class T>
  T& attached() {
    static const char key = 0;  // its address names T
    for (const auto& [name, object] : attached_)
      if (name == &key) return *static_cast<T*>(object.get());
    make_current();
    auto object = std::make_shared<T>();
    attached_.emplace_back(&key, object);
    return *object;
  }

 private:
  class Events;

  const int gpu_;
  int multiprocessors_ = 0, shared_memory_ = 0, near_node_ = -1;
  std::array<cudaStream_t, kNumStreams> streams_{};
  std::array<std::uint64_t, kNumStreams> recorded_{};                         // events of each stream so far
  std::array<std::array<std::uint64_t, kNumStreams>, kNumStreams> waited_{};  // [waiter][stream]: for the last of these
  std::shared_ptr<Events> events_;
  struct Block {
    MemoryKind kind;
    std::byte* address;
    dim_t bytes;
  };
  std::vector<Block> blocks_;
  std::vector<std::pair<const void*, std::shared_ptr<void>>> attached_;
};

inline CudaDevice& cuda_device(Device& device) {
  CHECK(device.backend() == Backend::kCuda, "a {} device where a cuda device is wanted", name_of(device.backend()));
  return static_cast<CudaDevice&>(device);
}

// For a Ctx (memory/context.h): the stream that its op launches into. The GPU becomes the thread's current one.
template <class Context>
cudaStream_t stream_of(const Context& ctx, StreamKind kind = StreamKind::kCompute) {
  CudaDevice& device = cuda_device(ctx.device);
  device.make_current();
  return device.stream(kind);
}

}  // namespace untied
