#include "device/cuda/memory.h"

#include <linux/mempolicy.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "base/host_memory.h"
#include "device/cuda/check.h"

namespace untied {
namespace {

std::string bytes_text(dim_t bytes) { return format_bytes(static_cast<double>(bytes)); }

// Fresh pages, from the GPU's own node if it can be: copies from the other node's memory cross the link between the sockets.
class Pages {
 public:
  Pages(int node, dim_t bytes) : bytes_(static_cast<std::size_t>(bytes)) {
    void* const address =
        mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (address == MAP_FAILED)
      throw OutOfMemoryError("cannot pin {} of host memory: {}", bytes_text(bytes), std::strerror(errno));
    begin_ = static_cast<std::byte*>(address);
    madvise(begin_, bytes_, MADV_HUGEPAGE);  // fewer pages to pin
    constexpr int kMaskBits = 8 * sizeof(unsigned long);
    const unsigned long mask = node >= 0 && node < kMaskBits ? 1ul << node : 0;
    // + 1: as the kernel counts. It fails in some containers; the memory is as good then, only farther.
    if (mask != 0) syscall(SYS_mbind, begin_, bytes_, MPOL_PREFERRED, &mask, kMaskBits + 1, 0);
  }
  Pages(const Pages&) = delete;
  ~Pages() {
    if (begin_) munmap(begin_, bytes_);
  }

  std::byte* begin() const { return begin_; }
  std::byte* release() { return std::exchange(begin_, nullptr); }

  // Makes [begin, end) real, by several threads: the kernel clears some GiB a second and thread.
  void touch(std::size_t begin, std::size_t end) const {
    constexpr std::size_t kThreads = 8, kHugePage = std::size_t{2} << 20;
    const std::size_t part = (end - begin + kThreads * kHugePage - 1) / (kThreads * kHugePage) * kHugePage;
    std::vector<std::jthread> threads;
    for (std::size_t at = begin; at < end; at += part)
      threads.emplace_back([from = begin_ + at, bytes = std::min(part, end - at)] {
        if (madvise(from, bytes, MADV_POPULATE_WRITE) == 0) return;
        for (std::size_t i = 0; i < bytes; i += 4096)
          static_cast<volatile std::byte*>(from)[i] = std::byte{0};  // before 5.14
      });
  }

 private:
  std::byte* begin_ = nullptr;
  const std::size_t bytes_;
};

}  // namespace

std::byte* reserve_on_device(int gpu, dim_t bytes) {
  void* address = nullptr;
  const cudaError_t error = cudaMalloc(&address, static_cast<std::size_t>(bytes));
  if (error == cudaErrorMemoryAllocation) {
    cudaGetLastError();  // it is told by the exception
    std::size_t free = 0, total = 0;
    CUDA_CHECK(cudaMemGetInfo(&free, &total));
    throw OutOfMemoryError("cannot reserve {} of device memory on GPU {}: {} of {} are free", bytes_text(bytes), gpu,
                           bytes_text(static_cast<dim_t>(free)), bytes_text(static_cast<dim_t>(total)));
  }
  CUDA_CHECK(error);
  return static_cast<std::byte*>(address);
}

void free_on_device(std::byte* block) { cudaFree(block); }

// Exactly so many bytes, pinned as one block. In slabs, each only when that much is available: asked for more than there is,
// Linux would rather kill a process than refuse. (What is available may also grow meanwhile, in virtual machines.)
std::byte* reserve_on_host(int node, dim_t bytes, const std::function<void(dim_t, dim_t)>& progress) {
  constexpr dim_t kSlab = dim_t{4} << 30;
  Pages pages(node, bytes);
  for (dim_t done = 0; done < bytes; done += kSlab) {
    if (progress) progress(done, bytes);
    const dim_t slab = std::min(kSlab, bytes - done);
    static std::mutex one_at_a_time;  // ranks of a process: what one has seen to be free is not another's
    const std::lock_guard lock(one_at_a_time);
    if (const dim_t available = available_host_memory(); slab > available)
      throw OutOfMemoryError(
          "cannot pin {} of host memory: {} more are available after {}; give a smaller --host-memory",
          bytes_text(bytes), bytes_text(available), bytes_text(done));
    pages.touch(static_cast<std::size_t>(done), static_cast<std::size_t>(done + slab));
  }
  const cudaError_t error = cudaHostRegister(pages.begin(), static_cast<std::size_t>(bytes), cudaHostRegisterPortable);
  if (error == cudaErrorMemoryAllocation) {
    cudaGetLastError();
    throw OutOfMemoryError("cannot pin {} of host memory: the driver refuses; give a smaller --host-memory",
                           bytes_text(bytes));
  }
  CUDA_CHECK(error);
  if (progress) progress(bytes, bytes);
  return pages.release();
}

void free_on_host(std::byte* block, dim_t bytes) {
  cudaHostUnregister(block);
  munmap(block, static_cast<std::size_t>(bytes));
}

}  // namespace untied
