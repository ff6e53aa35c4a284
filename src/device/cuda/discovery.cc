// Which GPUs there are, and in one line why there are none.
#include <cstdlib>

#include "device/cuda.h"
#include "device/cuda/check.h"
#include "device/cuda/stream.h"

namespace untied {
namespace {

std::string version_text(int version) { return format("{}.{}", version / 1000, version % 1000 / 10); }

std::string visible_devices() {
  const char* const visible = std::getenv("CUDA_VISIBLE_DEVICES");
  return visible ? format(" (CUDA_VISIBLE_DEVICES is '{}')", visible) : "";
}

}  // namespace

int cuda_device_count() {
  int count = 0;
  if (cudaGetDeviceCount(&count) == cudaSuccess) return count;
  cudaGetLastError();
  return 0;
}

std::string cuda_trouble() {
  const char* const visible = std::getenv("CUDA_VISIBLE_DEVICES");
  int driver = 0;
  if ((visible && *visible == 0) || cudaDriverGetVersion(&driver) != cudaSuccess || driver == 0) return "";
  try {
    require_cuda(1);
    return "";
  } catch (const DeviceError& error) {
    return error.what();
  }
}

void require_cuda(int gpus) {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error == cudaErrorInsufficientDriver) {
    cudaGetLastError();
    int driver = 0, runtime = 0;
    cudaDriverGetVersion(&driver);
    cudaRuntimeGetVersion(&runtime);
    if (driver == 0) throw DeviceError("no NVIDIA driver (libcuda.so.1) on this machine: cuda is out of reach");
    throw DeviceError("the NVIDIA driver knows CUDA {}, this program is built with {}: a newer driver is wanted",
                      version_text(driver), version_text(runtime));
  }
  if (error == cudaErrorNoDevice || (error == cudaSuccess && count == 0)) {
    cudaGetLastError();
    throw DeviceError("the NVIDIA driver finds no GPU{}", visible_devices());
  }
  CUDA_CHECK(error);
  if (count < gpus) throw DeviceError("{} GPUs wanted, {} here{}", gpus, count, visible_devices());
}

DeviceMemory cuda_memory(int gpu) {
  CUDA_CHECK(cudaSetDevice(gpu));
  std::size_t free = 0, total = 0;
  CUDA_CHECK(cudaMemGetInfo(&free, &total));
  return {static_cast<dim_t>(free), static_cast<dim_t>(total)};
}

std::unique_ptr<Device> make_cuda_device(int gpu) {
  CHECK(gpu >= 0, "GPU {}", gpu);
  require_cuda(gpu + 1);
  return std::make_unique<CudaDevice>(gpu);
}

}  // namespace untied
