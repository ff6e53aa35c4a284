#include <cublasLt.h>
#include <cudnn.h>

#include "base/error.h"
#include "ops/cuda_libraries.h"

namespace untied {

void require_cuda_libraries() {
  cublasLtGetVersion();                   // that of its file name is the one it was built with
  constexpr std::size_t kOldest = 91000;  // attention over any strides and sizes; 9.19 is what is tested
  if (const std::size_t version = cudnnGetVersion(); version < kOldest)
    throw DeviceError("libcudnn.so.9 is cuDNN {}.{}: {}.{} or newer is wanted", version / 10000, version / 100 % 100,
                      kOldest / 10000, kOldest / 100 % 100);
}

}  // namespace untied
