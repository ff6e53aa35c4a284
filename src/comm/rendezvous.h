// Where the rank threads of one process meet for a collective: each publishes the views it calls with, and goes on when all
// are there. Mutex and condition variable, no spinning: ranks may outnumber cores.
//
// A collective is meet(), copying straight out of the others' views, then leave_together(). Between the two every rank only
// copies, so leave_together() always ends; nobody's memory goes away while another rank reads it, whatever fails meanwhile.
#pragma once

#include <condition_variable>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "comm/communicator.h"

namespace untied {

// One rank's part in a collective. Fields that an op does not use keep their defaults.
struct CollectiveCall {
  const char* op = "";
  Tensor tensor;  // shard, full, or inout: what the others read
  Reduce reduce = Reduce::kSum;
  int root = 0;
  std::span<const Tensor> send, recv;  // all_to_all

  std::string str() const;
};

class Rendezvous {
 public:
  explicit Rendezvous(int size) : calls_(size) {}

  int size() const { return static_cast<int>(calls_.size()); }

  // Returns when every rank is here with a matching call. Throws DeviceError on every rank when they do not match, or when a
  // rank has failed or left.
  void meet(int rank, const CollectiveCall& call);
  // What `rank` called with; from meet() to leave_together().
  const CollectiveCall& call(int rank) const { return calls_[rank]; }
  // Between two phases of a collective: waits for all.
  void step() { wait_for_all(); }
  void leave_together() { wait_for_all(); }

  // Ends every present and future meet(). The first cause stands.
  void fail(int rank, const std::string& cause);
  // Throws DeviceError, saying that `op` was given up and why, when the group has failed.
  void check(const char* op);

 private:
  // True for the last to arrive, who then calls release().
  bool arrive() { return ++arrived_ == size(); }
  void release();
  void wait_for_all();
  [[noreturn]] void throw_failure(const char* op) const;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<CollectiveCall> calls_;
  int arrived_ = 0;
  std::uint64_t round_ = 0;  // complete arrivals of all ranks
  std::string failure_;      // empty: none
};

}  // namespace untied
