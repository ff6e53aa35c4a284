// Ranks on GPUs of this process, for code that knows no NCCL types.
#pragma once

#include "comm/communicator.h"

namespace untied {

#ifdef UNTIED_HAS_CUDA

// `size` communicators over NCCL, one per rank thread, each on another GPU: that of the context which it is first called with.
// Throws DeviceError when NCCL is missing or too old.
//
// Each stream that collectives run on has channels of its own, so that a gather for the next block does not wait behind the
// exchange of this one's heads. Reductions sum in the order of NCCL's rings: the same bits on every rank (all_reduce) and in
// every run on the same GPUs, but not those of another number of ranks. A NaN need not win kMax.
std::vector<std::unique_ptr<Communicator>> make_nccl_communicators(int size);

#else

inline std::vector<std::unique_ptr<Communicator>> make_nccl_communicators(int) {
  throw DeviceError("this build has no cuda backend");
}

#endif

}  // namespace untied
