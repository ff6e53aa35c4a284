// Checks of CUDA calls. The message has the call, the cause, the place and the GPU.
#pragma once

#include <cuda_runtime_api.h>

#include "base/error.h"

namespace untied {

// Throws OutOfMemoryError for want of memory, else DeviceError.
[[noreturn]] void fail_cuda(cudaError_t error, const char* call, const char* file, int line);

}  // namespace untied

#define CUDA_CHECK(call)                                                               \
  do {                                                                                 \
    if (const cudaError_t cuda_error = (call); cuda_error != cudaSuccess) [[unlikely]] \
      ::untied::fail_cuda(cuda_error, #call, __FILE__, __LINE__);                      \
  } while (false)

// After each launch; `name` is the op. A kernel that fails while it runs shows at a later call, maybe of another op.
#define CHECK_LAUNCH(name)                                                                         \
  do {                                                                                             \
    if (const cudaError_t cuda_error = cudaGetLastError(); cuda_error != cudaSuccess) [[unlikely]] \
      ::untied::fail_cuda(cuda_error, name, __FILE__, __LINE__);                                   \
  } while (false)
