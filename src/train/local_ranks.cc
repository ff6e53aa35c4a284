#include "train/local_ranks.h"

#include <exception>
#include <mutex>
#include <thread>

namespace untied {

void run_local_ranks(int ranks, const std::function<void(std::shared_ptr<Communicator>)>& body) {
  std::vector<std::shared_ptr<Communicator>> communicators;
  if (ranks == 1) communicators.push_back(make_self_communicator());
  else
    for (auto& c : make_thread_communicators(ranks)) communicators.push_back(std::move(c));

  std::mutex mutex;
  std::exception_ptr first;
  auto run = [&](int rank) {
    std::string cause;
    try {
      body(communicators[rank]);
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
