#include "train/local_ranks.h"

#include <exception>
#include <mutex>
#include <thread>

#include "comm/nccl.h"
#include "device/cpu.h"
#include "device/cuda.h"
#include "ops/cuda_libraries.h"

namespace untied {
namespace {

std::vector<std::shared_ptr<Communicator>> make_communicators(Backend backend, int ranks) {
  std::vector<std::unique_ptr<Communicator>> made;
  if (ranks == 1) made.push_back(make_self_communicator());
  else made = backend == Backend::kCuda ? make_nccl_communicators(ranks) : make_thread_communicators(ranks);
  return {std::make_move_iterator(made.begin()), std::make_move_iterator(made.end())};
}

}  // namespace

std::unique_ptr<Device> make_local_device(Backend backend, int rank, int threads) {
  if (backend == Backend::kCuda) return make_cuda_device(rank);
  return make_cpu_device({.threads = threads});
}

void run_local_ranks(Backend backend, int ranks,
                     const std::function<std::shared_ptr<void>(std::shared_ptr<Communicator>)>& make,
                     const std::function<void(void*)>& body) {
  if (backend == Backend::kCuda) {
    require_cuda(ranks);
    require_cuda_libraries();
  }
  const std::vector<std::shared_ptr<Communicator>> communicators = make_communicators(backend, ranks);
  std::mutex mutex;
  std::exception_ptr first;
  auto run = [&](int rank) {
    std::shared_ptr<void> state;
    std::string cause;
    try {
      state = make(communicators[rank]);
      body(state.get());
      return;
    } catch (const std::exception& error) {
      cause = error.what();
      std::lock_guard lock(mutex);
      if (!first) first = std::current_exception();
    }
    communicators[rank]->abort(format("rank {}: {}", rank, cause));
  };
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) threads.emplace_back(run, rank);
  for (std::thread& thread : threads) thread.join();
  if (first) std::rethrow_exception(first);
}

}  // namespace untied
