// Runs a function on n ranks, each a thread with its own cpu device, memory and communicator.
#pragma once

#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "comm/communicator.h"
#include "device/cpu.h"

namespace untied::test {

// What a rank's code is given. The communicator leaves the group when the function returns or throws.
struct Rank {
  Ctx& ctx;
  Communicator& comm;
  int rank() const { return comm.rank(); }
  int size() const { return comm.size(); }
};

struct WorldOptions {
  dim_t device_bytes = 16 << 20, host_bytes = 16 << 20;
  bool lazy_copies = true;     // a missing wait shows every time
  bool abort_on_error = true;  // as the program does; false: the rank just goes away
};

// Each rank's exit: empty, or the message of the exception that ended it.
inline std::vector<std::string> run_ranks(int ranks, const std::function<void(Rank)>& body,
                                          const WorldOptions& options = {}) {
  std::vector<std::unique_ptr<Communicator>> comms = make_thread_communicators(ranks);
  std::vector<std::string> errors(ranks);
  std::vector<std::thread> threads;
  for (int r = 0; r < ranks; ++r) {
    threads.emplace_back([&, r, comm = std::move(comms[r])]() mutable {
      try {
        RankMemory memory(make_cpu_device({.lazy_copies = options.lazy_copies}), options.device_bytes,
                          options.host_bytes);
        body({memory.ctx(), *comm});
      } catch (const std::exception& error) {
        errors[r] = error.what();
        if (options.abort_on_error) comm->abort(error.what());
      }
      comm.reset();
    });
  }
  for (std::thread& t : threads) t.join();
  return errors;
}

// The usual case: all ranks end well. Use with EXPECT_EQ(failures(...), "").
inline std::string failures(const std::vector<std::string>& errors) {
  std::string text;
  for (std::size_t r = 0; r < errors.size(); ++r)
    if (!errors[r].empty()) text += "rank " + std::to_string(r) + ": " + errors[r] + "\n";
  return text;
}

}  // namespace untied::test
