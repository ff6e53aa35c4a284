// The ranks of this process: one thread each.
#pragma once

#include <functional>
#include <memory>

#include "comm/communicator.h"

namespace untied {

// The device of rank `rank`: on cuda the GPU of that number. Throws DeviceError when there is none.
std::unique_ptr<Device> make_local_device(Backend backend, int rank, int threads);

// Runs body(make(communicator)) in one thread per rank and returns when all have ended. The first rank that throws aborts the
// others' collectives; its exception, not theirs, is thrown again here.
//
// What `make` returns holds the rank's device. It outlives the report of a failure: a device that ends waits for its
// collectives, and when a rank has failed only the abort ends those. `make` itself does not communicate.
void run_local_ranks(Backend backend, int ranks,
                     const std::function<std::shared_ptr<void>(std::shared_ptr<Communicator>)>& make,
                     const std::function<void(void*)>& body);

// The same with types.
template <class State>
void run_local_ranks(Backend backend, int ranks,
                     const std::function<std::unique_ptr<State>(std::shared_ptr<Communicator>)>& make,
                     const std::function<void(State&)>& body) {
  run_local_ranks(
      backend, ranks,
      [&](std::shared_ptr<Communicator> world) -> std::shared_ptr<void> { return make(std::move(world)); },
      [&](void* state) { body(*static_cast<State*>(state)); });
}

}  // namespace untied
