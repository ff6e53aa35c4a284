// The functions of cuBLASLt that the matrix product calls, found at run time.
#include <cublasLt.h>

#include "device/cuda/shared_library.h"

#define TEXT_OF(name) #name
#define AS_TEXT(macro) TEXT_OF(macro)

namespace untied {
namespace {
SharedLibrary& cublaslt() {
  static SharedLibrary library(
      "libcublasLt.so." AS_TEXT(CUBLAS_VER_MAJOR),
      "install cuBLAS of CUDA " AS_TEXT(
          CUBLAS_VER_MAJOR) " (the toolkit's, or the wheel nvidia-cublas) and name its folder in LD_LIBRARY_PATH");
  return library;
}
}  // namespace
}  // namespace untied

FORWARD(untied::cublaslt, size_t, cublasLtGetVersion, (), ())
FORWARD(untied::cublaslt, const char*, cublasLtGetStatusString, (cublasStatus_t status), (status))
FORWARD(untied::cublaslt, cublasStatus_t, cublasLtCreate, (cublasLtHandle_t * handle), (handle))
FORWARD(untied::cublaslt, cublasStatus_t, cublasLtDestroy, (cublasLtHandle_t handle), (handle))
FORWARD(untied::cublaslt, cublasStatus_t, cublasLtMatmul,
        (cublasLtHandle_t handle, cublasLtMatmulDesc_t product, const void* alpha, const void* a,
         cublasLtMatrixLayout_t a_layout, const void* b, cublasLtMatrixLayout_t b_layout, const void* beta,
         const void* c, cublasLtMatrixLayout_t c_layout, void* d, cublasLtMatrixLayout_t d_layout,
         const cublasLtMatmulAlgo_t* algorithm, void* workspace, size_t workspace_bytes, cudaStream_t stream),
        (handle, product, alpha, a, a_layout, b, b_layout, beta, c, c_layout, d, d_layout, algorithm, workspace,
         workspace_bytes, stream))
FORWARD(untied::cublaslt, cublasStatus_t, cublasLtMatmulAlgoGetHeuristic,
        (cublasLtHandle_t handle, cublasLtMatmulDesc_t product, cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
         cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d, cublasLtMatmulPreference_t preference, int most,
         cublasLtMatmulHeuristicResult_t* results, int* found),
        (handle, product, a, b, c, d, preference, most, results, found))
FORWARD(untied::cublaslt, cublasStatus_t, cublasLtMatmulDescCreate,
        (cublasLtMatmulDesc_t * product, cublasComputeType_t compute, cudaDataType_t scale), (product, compute, scale))
FORWARD(untied::cublaslt, cublasStatus_t, cublasLtMatmulDescDestroy, (cublasLtMatmulDesc_t product), (product))
FORWARD(untied::cublaslt, cublasStatus_t, cublasLtMatmulDescSetAttribute,
        (cublasLtMatmulDesc_t product, cublasLtMatmulDescAttributes_t attribute, const void* value, size_t bytes),
        (product, attribute, value, bytes))
FORWARD(untied::cublaslt, cublasStatus_t, cublasLtMatrixLayoutCreate,
        (cublasLtMatrixLayout_t * layout, cudaDataType type, uint64_t rows, uint64_t columns, int64_t distance),
        (layout, type, rows, columns, distance))
FORWARD(untied::cublaslt, cublasStatus_t, cublasLtMatrixLayoutDestroy, (cublasLtMatrixLayout_t layout), (layout))
FORWARD(untied::cublaslt, cublasStatus_t, cublasLtMatmulPreferenceCreate, (cublasLtMatmulPreference_t * preference),
        (preference))
FORWARD(untied::cublaslt, cublasStatus_t, cublasLtMatmulPreferenceDestroy, (cublasLtMatmulPreference_t preference),
        (preference))
FORWARD(untied::cublaslt, cublasStatus_t, cublasLtMatmulPreferenceSetAttribute,
        (cublasLtMatmulPreference_t preference, cublasLtMatmulPreferenceAttributes_t attribute, const void* value,
         size_t bytes),
        (preference, attribute, value, bytes))
