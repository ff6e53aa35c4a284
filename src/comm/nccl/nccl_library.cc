// The functions of NCCL that the communicator calls, found at run time.
#include <nccl.h>

#include "device/cuda/shared_library.h"

namespace untied {
namespace {
SharedLibrary& nccl() {
  static SharedLibrary library(
      "libnccl.so.2",
      "install NCCL 2.18 or newer for this CUDA version (NVIDIA's package, or a wheel nvidia-nccl-cu13) and name its folder in LD_LIBRARY_PATH");
  return library;
}
}  // namespace
}  // namespace untied

FORWARD(untied::nccl, ncclResult_t, ncclGetVersion, (int* version), (version))
FORWARD(untied::nccl, const char*, ncclGetErrorString, (ncclResult_t result), (result))
FORWARD(untied::nccl, const char*, ncclGetLastError, (ncclComm_t comm), (comm))
FORWARD(untied::nccl, ncclResult_t, ncclGetUniqueId, (ncclUniqueId * id), (id))
FORWARD(untied::nccl, ncclResult_t, ncclCommInitRankConfig,
        (ncclComm_t * comm, int ranks, ncclUniqueId id, int rank, ncclConfig_t* config),
        (comm, ranks, id, rank, config))
FORWARD(untied::nccl, ncclResult_t, ncclCommFinalize, (ncclComm_t comm), (comm))
FORWARD(untied::nccl, ncclResult_t, ncclCommDestroy, (ncclComm_t comm), (comm))
FORWARD(untied::nccl, ncclResult_t, ncclCommAbort, (ncclComm_t comm), (comm))
FORWARD(untied::nccl, ncclResult_t, ncclCommGetAsyncError, (ncclComm_t comm, ncclResult_t* error), (comm, error))
FORWARD(untied::nccl, ncclResult_t, ncclGroupStart, (), ())
FORWARD(untied::nccl, ncclResult_t, ncclGroupEnd, (), ())
FORWARD(untied::nccl, ncclResult_t, ncclSend,
        (const void* from, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream),
        (from, count, type, peer, comm, stream))
FORWARD(untied::nccl, ncclResult_t, ncclRecv,
        (void* to, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream),
        (to, count, type, peer, comm, stream))
FORWARD(untied::nccl, ncclResult_t, ncclAllGather,
        (const void* from, void* to, size_t count, ncclDataType_t type, ncclComm_t comm, cudaStream_t stream),
        (from, to, count, type, comm, stream))
FORWARD(untied::nccl, ncclResult_t, ncclReduceScatter,
        (const void* from, void* to, size_t count, ncclDataType_t type, ncclRedOp_t op, ncclComm_t comm,
         cudaStream_t stream),
        (from, to, count, type, op, comm, stream))
FORWARD(untied::nccl, ncclResult_t, ncclAllReduce,
        (const void* from, void* to, size_t count, ncclDataType_t type, ncclRedOp_t op, ncclComm_t comm,
         cudaStream_t stream),
        (from, to, count, type, op, comm, stream))
FORWARD(untied::nccl, ncclResult_t, ncclBroadcast,
        (const void* from, void* to, size_t count, ncclDataType_t type, int root, ncclComm_t comm, cudaStream_t stream),
        (from, to, count, type, root, comm, stream))
