// The functions of cuDNN that cudnn-frontend and attention call, found at run time.
#include <cudnn.h>

#include "device/cuda/shared_library.h"

namespace untied {
namespace {
SharedLibrary& cudnn() {
  static SharedLibrary library(
      "libcudnn.so.9",
      "install cuDNN 9 for this CUDA version (NVIDIA's package, or a wheel nvidia-cudnn-cu13) and name its folder in LD_LIBRARY_PATH");
  return library;
}
}  // namespace
}  // namespace untied

FORWARD(untied::cudnn, size_t, cudnnGetVersion, (), ())
FORWARD(untied::cudnn, const char*, cudnnGetErrorString, (cudnnStatus_t status), (status))
FORWARD(untied::cudnn, void, cudnnGetLastErrorString, (char* message, size_t most), (message, most))
FORWARD(untied::cudnn, cudnnStatus_t, cudnnCreate, (cudnnHandle_t * handle), (handle))
FORWARD(untied::cudnn, cudnnStatus_t, cudnnDestroy, (cudnnHandle_t handle), (handle))
FORWARD(untied::cudnn, cudnnStatus_t, cudnnSetStream, (cudnnHandle_t handle, cudaStream_t stream), (handle, stream))
FORWARD(untied::cudnn, cudnnStatus_t, cudnnGetStream, (cudnnHandle_t handle, cudaStream_t* stream), (handle, stream))
FORWARD(untied::cudnn, cudnnStatus_t, cudnnBackendCreateDescriptor,
        (cudnnBackendDescriptorType_t type, cudnnBackendDescriptor_t* descriptor), (type, descriptor))
FORWARD(untied::cudnn, cudnnStatus_t, cudnnBackendDestroyDescriptor, (cudnnBackendDescriptor_t descriptor),
        (descriptor))
FORWARD(untied::cudnn, cudnnStatus_t, cudnnBackendFinalize, (cudnnBackendDescriptor_t descriptor), (descriptor))
FORWARD(untied::cudnn, cudnnStatus_t, cudnnBackendSetAttribute,
        (cudnnBackendDescriptor_t descriptor, cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
         int64_t count, const void* elements),
        (descriptor, name, type, count, elements))
FORWARD(untied::cudnn, cudnnStatus_t, cudnnBackendGetAttribute,
        (cudnnBackendDescriptor_t const descriptor, cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
         int64_t wanted, int64_t* count, void* elements),
        (descriptor, name, type, wanted, count, elements))
FORWARD(untied::cudnn, cudnnStatus_t, cudnnBackendExecute,
        (cudnnHandle_t handle, cudnnBackendDescriptor_t plan, cudnnBackendDescriptor_t pack), (handle, plan, pack))

// Never called; an unoptimised build refers to them, from parts of cudnn-frontend that are not used.
FORWARD(untied::cudnn, cudnnStatus_t, cudnnCreateFilterDescriptor, (cudnnFilterDescriptor_t * filter), (filter))
FORWARD(untied::cudnn, cudnnStatus_t, cudnnDestroyFilterDescriptor, (cudnnFilterDescriptor_t filter), (filter))
FORWARD(untied::cudnn, cudnnStatus_t, cudnnSetFilterNdDescriptor,
        (cudnnFilterDescriptor_t filter, cudnnDataType_t type, cudnnTensorFormat_t format, int dimensions,
         const int sizes[]),
        (filter, type, format, dimensions, sizes))
FORWARD(untied::cudnn, cudnnStatus_t, cudnnReorderFilterAndBias,
        (cudnnHandle_t handle, const cudnnFilterDescriptor_t filter, cudnnReorderType_t reorder, const void* from,
         void* to, int reorder_bias, const void* bias_from, void* bias_to),
        (handle, filter, reorder, from, to, reorder_bias, bias_from, bias_to))
