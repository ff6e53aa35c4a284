// The vendor's libraries behind the cuda ops, for code that knows no CUDA types.
#pragma once

namespace untied {

#ifdef UNTIED_HAS_CUDA
// Throws DeviceError, saying what to do, unless cuBLASLt and cuDNN are here and new enough. A run asks before it loads anything.
void require_cuda_libraries();
#else
inline void require_cuda_libraries() {}
#endif

}  // namespace untied
