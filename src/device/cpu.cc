#include "device/cpu.h"

#include <sys/mman.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <deque>
#include <functional>
#include <utility>
#include <vector>

namespace untied {
namespace {

// Calls run(dst, src, bytes) for every run of bytes that is contiguous in both of two equally shaped views.
template <class Run>
void for_each_run(const Tensor& dst, const Tensor& src, Run&& run) {
  if (dst.size() == 0) return;
  const dim_t element = static_cast<dim_t>(size_of(dst.dtype()));
  // Trailing dimensions that follow each other without a gap in both views are one run; those before it are loops.
  int loops = dst.rank() - 1;
  dim_t length = dst.dim(loops);
  while (loops > 0 && dst.stride(loops - 1) == length && src.stride(loops - 1) == length) length *= dst.dim(--loops);

  std::array<dim_t, kMaxDims - 1> count, dst_step, src_step;
  count.fill(1), dst_step.fill(0), src_step.fill(0);
  for (int i = 0; i < loops; ++i) {
    count[i] = dst.dim(i);
    dst_step[i] = dst.stride(i) * element;
    src_step[i] = src.stride(i) * element;
  }
  std::byte* const d = dst.as<std::byte>();
  std::byte* const s = src.as<std::byte>();
  for (dim_t i = 0; i < count[0]; ++i)
    for (dim_t j = 0; j < count[1]; ++j)
      for (dim_t k = 0; k < count[2]; ++k)
        run(d + i * dst_step[0] + j * dst_step[1] + k * dst_step[2],
            s + i * src_step[0] + j * src_step[1] + k * src_step[2], static_cast<std::size_t>(length * element));
}

class CpuDevice final : public Device {
 public:
  explicit CpuDevice(const CpuDeviceOptions& options) : lazy_(options.lazy_copies) { threads_ = options.threads; }
  ~CpuDevice() override {
    for (auto [address, bytes] : blocks_) munmap(address, bytes);
  }

  Backend backend() const override { return Backend::kCpu; }

  std::byte* reserve(MemoryKind kind, dim_t bytes) override {
    CHECK(bytes >= 0, "reserve of {} bytes", bytes);
    if (bytes == 0) return nullptr;
    void* address = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (address == MAP_FAILED)
      throw OutOfMemoryError("cannot reserve {} of {} memory: {}", format_bytes(static_cast<double>(bytes)),
                             kind == MemoryKind::kHost ? "host" : "device (cpu)", std::strerror(errno));
    blocks_.emplace_back(address, bytes);
    return static_cast<std::byte*>(address);
  }

  Event record(StreamKind stream) override {
    if (!lazy_ || !is_copy(stream) || queue_of(stream).work.empty()) return {};
    const Queue& queue = queue_of(stream);
    return {stream, queue.done + queue.work.size(), nullptr};
  }

  void wait(StreamKind waiter, const Event& event) override {
    if (waiter == event.stream || is_over(event)) return;
    if (is_copy(waiter)) queue_of(waiter).work.push_back([this, event] { run_until(event); });
    else run_until(event);
  }

  void synchronize() override {
    for (StreamKind stream : {StreamKind::kToHost, StreamKind::kToDevice}) run_until(record(stream));
  }

  void copy(StreamKind stream, const Tensor& dst, const Tensor& src) override {
    check_copy(dst, src);
    submit(stream, [dst, src] {
      for_each_run(dst, src, [](std::byte* d, std::byte* s, std::size_t bytes) { std::memcpy(d, s, bytes); });
    });
  }

  void zero(StreamKind stream, const Tensor& dst) override {
    check_rows(dst);
    submit(stream, [dst] {
      for_each_run(dst, dst, [](std::byte* d, std::byte*, std::size_t bytes) { std::memset(d, 0, bytes); });
    });
  }

 private:
  // The work of a copy stream that has not run yet, in order.
  struct Queue {
    std::deque<std::function<void()>> work;
    std::uint64_t done = 0;  // pieces of work that have left the queue
  };
  static bool is_copy(StreamKind s) { return s == StreamKind::kToHost || s == StreamKind::kToDevice; }
  Queue& queue_of(StreamKind s) { return queues_[s == StreamKind::kToHost ? 0 : 1]; }
  bool is_over(const Event& event) { return !event.pending() || queue_of(event.stream).done >= event.sequence; }

  template <class Work>
  void submit(StreamKind stream, Work&& work) {
    if (lazy_ && is_copy(stream)) queue_of(stream).work.emplace_back(std::forward<Work>(work));
    else work();
  }

  // Queued work may itself wait for the other queue. It then only ever waits for work that was queued before it, so two queues
  // cannot wait for each other in a circle, and the piece that is running (already out of the queue) is never needed again.
  void run_until(const Event& event) {
    while (!is_over(event)) {
      Queue& queue = queue_of(event.stream);
      auto work = std::move(queue.work.front());
      queue.work.pop_front();
      ++queue.done;
      work();
    }
  }

  const bool lazy_;
  Queue queues_[2];
  std::vector<std::pair<void*, std::size_t>> blocks_;
};

}  // namespace

std::unique_ptr<Device> make_cpu_device(const CpuDeviceOptions& options) {
  return std::make_unique<CpuDevice>(options);
}

}  // namespace untied
