// The ranks of this process: one thread each.
#pragma once

#include <functional>
#include <memory>

#include "comm/communicator.h"

namespace untied {

// Runs body(communicator) in one thread per rank and returns when all have ended. The first rank that throws aborts the
// others' collectives; its exception, not theirs, is thrown again here.
void run_local_ranks(int ranks, const std::function<void(std::shared_ptr<Communicator>)>& body);

}  // namespace untied
