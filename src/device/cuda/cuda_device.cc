// The cuda device: four streams that do not wait for the default stream, pooled events, copies of strided views as one or few
// calls of the copy engine, and one allocation per arena.
#include <cstring>

#include "device/cuda/check.h"
#include "device/cuda/memory.h"
#include "device/cuda/stream.h"

namespace untied {
namespace {

// `height` runs of `width` bytes, at a constant distance in each of two views.
struct Runs {
  std::byte *dst, *src;
  dim_t dst_pitch, src_pitch, width, height;
  // What the 2-D calls take.
  bool fits_2d() const {
    constexpr dim_t kMaxPitch = 0x7fffffff;  // cudaDevAttrMaxPitch of every GPU so far
    return width <= dst_pitch && width <= src_pitch && dst_pitch <= kMaxPitch && src_pitch <= kMaxPitch;
  }
};

// Calls each(runs) until two equally shaped views are covered: once for views of up to two dimensions that count.
template <class Each>
void for_each_runs(const Tensor& dst, const Tensor& src, Each&& each) {
  if (dst.size() == 0) return;
  const dim_t element = static_cast<dim_t>(size_of(dst.dtype()));
  struct Loop {
    dim_t count = 1, dst_step = 0, src_step = 0;  // steps in bytes
  };
  // Innermost first; the first is over the bytes of a run. A dimension without a gap in either view joins the one inside it.
  std::array<Loop, kMaxDims> loops;
  int last = 0;
  loops[0] = {dst.dim(dst.rank() - 1) * element, 1, 1};
  for (int i = dst.rank() - 2; i >= 0; --i) {
    if (dst.dim(i) == 1) continue;
    const Loop next{dst.dim(i), dst.stride(i) * element, src.stride(i) * element};
    Loop& inside = loops[last];
    if (next.dst_step == inside.count * inside.dst_step && next.src_step == inside.count * inside.src_step)
      inside.count *= next.count;
    else loops[++last] = next;
  }
  const auto& [bytes, rows, middle, outer] = loops;
  for (dim_t i = 0; i < outer.count; ++i)
    for (dim_t j = 0; j < middle.count; ++j)
      each(Runs{dst.as<std::byte>() + i * outer.dst_step + j * middle.dst_step,
                src.as<std::byte>() + i * outer.src_step + j * middle.src_step, rows.dst_step, rows.src_step,
                bytes.count, rows.count});
}

}  // namespace

void fail_cuda(cudaError_t error, const char* call, const char* file, int line) {
  cudaGetLastError();  // an error that does not stick is reported once
  int gpu = -1;
  cudaGetDevice(&gpu);
  const char* const inside = std::strstr(file, "/src/");
  const std::string text = format("{}: {} ({}) [{}:{}, GPU {}]", call, cudaGetErrorString(error),
                                  cudaGetErrorName(error), inside ? inside + 1 : file, line, gpu);
  if (error == cudaErrorMemoryAllocation) throw OutOfMemoryError("{}", text);
  throw DeviceError("{}", text);
}

// Events without a time stamp. One that nobody refers to any more is recorded anew: a stream that was told to wait for it
// waits for what it meant then.
class CudaDevice::Events : public std::enable_shared_from_this<Events> {
 public:
  Events() = default;
  Events(const Events&) = delete;
  ~Events() {
    for (cudaEvent_t event : free_) cudaEventDestroy(event);
  }
  // The last owner gives it back; the pool lives as long as any of its events.
  std::shared_ptr<void> take() {
    if (free_.empty()) {
      free_.reserve(static_cast<std::size_t>(++made_));  // giving back must not throw
      cudaEvent_t event = nullptr;
      CUDA_CHECK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
      free_.push_back(event);
    }
    const cudaEvent_t event = free_.back();
    free_.pop_back();
    return {event, [pool = shared_from_this()](cudaEvent_t e) { pool->free_.push_back(e); }};
  }

 private:
  std::vector<cudaEvent_t> free_;
  dim_t made_ = 0;
};

CudaDevice::CudaDevice(int gpu) : gpu_(gpu), events_(std::make_shared<Events>()) {
  // A rank waits for its GPU for minutes: it should sleep, not spin.
  CUDA_CHECK(cudaInitDevice(gpu, cudaDeviceScheduleBlockingSync, cudaInitDeviceFlagsAreValid));
  make_current();
  CUDA_CHECK(cudaDeviceGetAttribute(&multiprocessors_, cudaDevAttrMultiProcessorCount, gpu));
  CUDA_CHECK(cudaDeviceGetAttribute(&shared_memory_, cudaDevAttrMaxSharedMemoryPerBlockOptin, gpu));
  if (cudaDeviceGetAttribute(&near_node_, cudaDevAttrHostNumaId, gpu) != cudaSuccess) {
    cudaGetLastError();  // an older driver
    near_node_ = -1;
  }
  // Gathers and reductions have few thread blocks, and other ranks wait for them: they go before compute kernels that are queued.
  int least = 0, greatest = 0;
  CUDA_CHECK(cudaDeviceGetStreamPriorityRange(&least, &greatest));
  for (int s = 0; s < kNumStreams; ++s)
    CUDA_CHECK(cudaStreamCreateWithPriority(&streams_[s], cudaStreamNonBlocking,
                                            static_cast<StreamKind>(s) == StreamKind::kComm ? greatest : least));
}

// After a failure every call here fails too; the run is ending with that error, so nobody is told.
CudaDevice::~CudaDevice() {
  cudaSetDevice(gpu_);
  for (cudaStream_t stream : streams_) cudaStreamSynchronize(stream);
  while (!attached_.empty()) attached_.pop_back();
  for (cudaStream_t stream : streams_) cudaStreamDestroy(stream);
  for (const Block& block : blocks_)
    block.kind == MemoryKind::kDevice ? free_on_device(block.address) : free_on_host(block.address, block.bytes);
}

std::string CudaDevice::name() const {
  cudaDeviceProp properties;
  CUDA_CHECK(cudaGetDeviceProperties(&properties, gpu_));
  return properties.name;
}

void CudaDevice::make_current() const { CUDA_CHECK(cudaSetDevice(gpu_)); }

std::byte* CudaDevice::reserve(MemoryKind kind, dim_t bytes) {
  CHECK(bytes >= 0, "reserve of {} bytes", bytes);
  if (bytes == 0) return nullptr;
  make_current();
  std::byte* const block =
      kind == MemoryKind::kDevice ? reserve_on_device(gpu_, bytes) : reserve_on_host(near_node_, bytes, on_reserve);
  blocks_.push_back({kind, block, bytes});
  return block;
}

Event CudaDevice::record(StreamKind stream_kind) {
  make_current();
  std::shared_ptr<void> event = events_->take();
  CUDA_CHECK(cudaEventRecord(static_cast<cudaEvent_t>(event.get()), stream(stream_kind)));
  return {stream_kind, ++recorded_[static_cast<int>(stream_kind)], std::move(event)};
}

void CudaDevice::wait(StreamKind waiter, const Event& event) {
  if (!event.pending() || event.stream == waiter) return;
  std::uint64_t& waited = waited_[static_cast<int>(waiter)][static_cast<int>(event.stream)];
  if (waited >= event.sequence) return;  // for a later point of that stream
  make_current();
  CUDA_CHECK(cudaStreamWaitEvent(stream(waiter), static_cast<cudaEvent_t>(event.handle.get()), 0));
  waited = event.sequence;
}

void CudaDevice::synchronize() {
  make_current();
  for (cudaStream_t stream : streams_) CUDA_CHECK(cudaStreamSynchronize(stream));
}

void CudaDevice::copy(StreamKind kind, const Tensor& dst, const Tensor& src) {
  check_copy(dst, src);
  make_current();
  for_each_runs(dst, src, [&, to = stream(kind)](const Runs& r) {
    const auto width = static_cast<std::size_t>(r.width);
    if (r.height > 1 && r.fits_2d()) {
      CUDA_CHECK(cudaMemcpy2DAsync(r.dst, static_cast<std::size_t>(r.dst_pitch), r.src,
                                   static_cast<std::size_t>(r.src_pitch), width, static_cast<std::size_t>(r.height),
                                   cudaMemcpyDefault, to));
      return;
    }
    for (dim_t i = 0; i < r.height; ++i)
      CUDA_CHECK(cudaMemcpyAsync(r.dst + i * r.dst_pitch, r.src + i * r.src_pitch, width, cudaMemcpyDefault, to));
  });
}

void CudaDevice::zero(StreamKind kind, const Tensor& dst) {
  check_rows(dst);
  make_current();
  for_each_runs(dst, dst, [&, to = stream(kind)](const Runs& r) {
    const auto width = static_cast<std::size_t>(r.width);
    if (r.height > 1 && r.fits_2d()) {
      CUDA_CHECK(cudaMemset2DAsync(r.dst, static_cast<std::size_t>(r.dst_pitch), 0, width,
                                   static_cast<std::size_t>(r.height), to));
      return;
    }
    for (dim_t i = 0; i < r.height; ++i) CUDA_CHECK(cudaMemsetAsync(r.dst + i * r.dst_pitch, 0, width, to));
  });
}

Device::TimeMark CudaDevice::mark(StreamKind kind) {
  make_current();
  cudaEvent_t event = nullptr;
  CUDA_CHECK(cudaEventCreate(&event));
  TimeMark mark(event, [](cudaEvent_t e) { cudaEventDestroy(e); });
  CUDA_CHECK(cudaEventRecord(event, stream(kind)));
  return mark;
}

double CudaDevice::seconds_between(const TimeMark& begin, const TimeMark& end) {
  float milliseconds = 0;
  CUDA_CHECK(
      cudaEventElapsedTime(&milliseconds, static_cast<cudaEvent_t>(begin.get()), static_cast<cudaEvent_t>(end.get())));
  return milliseconds * 1e-3;
}

}  // namespace untied
