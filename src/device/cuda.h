// The cuda device for code that knows no CUDA types. A build without the cuda backend has no GPUs.
#pragma once

#include <memory>
#include <string>

#include "device/device.h"

namespace untied {

#ifdef UNTIED_HAS_CUDA
inline constexpr bool kHasCuda = true;
#else
inline constexpr bool kHasCuda = false;
#endif

struct DeviceMemory {
  dim_t free = 0, total = 0;  // bytes; free: what this process could still allocate, its context made
};

#ifdef UNTIED_HAS_CUDA

// GPUs that this process may use; 0 without a driver, or with one that is too old.
int cuda_device_count();
// Why there are none on a machine that has an NVIDIA driver; empty when there are, when there is no driver, or when
// CUDA_VISIBLE_DEVICES hides them all on purpose.
std::string cuda_trouble();
// Throws DeviceError, saying what is missing, unless there are so many GPUs.
void require_cuda(int gpus);
DeviceMemory cuda_memory(int gpu);
// GPU `gpu`, counted as CUDA_VISIBLE_DEVICES has them. Call it in the rank's thread.
std::unique_ptr<Device> make_cuda_device(int gpu);

#else

inline int cuda_device_count() { return 0; }
inline std::string cuda_trouble() { return ""; }
inline void require_cuda(int) { throw DeviceError("this build has no cuda backend"); }
inline DeviceMemory cuda_memory(int) {
  require_cuda(1);
  return {};
}
inline std::unique_ptr<Device> make_cuda_device(int) {
  require_cuda(1);
  return nullptr;
}

#endif

}  // namespace untied
