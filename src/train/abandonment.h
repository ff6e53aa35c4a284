// How the ranks of a process agree to give up a step that would outlast --grace after a stop signal.
#pragma once

#include <atomic>

#include "base/stop_signal.h"
#include "train/step.h"

namespace untied {

// Shared by the ranks. Whoever first sees at a block boundary that time is up names the boundary after it. No rank can have
// passed that one: a block holds collectives of all ranks.
class Abandonment {
 public:
  explicit Abandonment(double grace_seconds) : grace_(grace_seconds) {}

  // A rank's `between_blocks`; the boundaries of all steps are counted on.
  class Rank {
   public:
    explicit Rank(Abandonment& shared) : shared_(shared) {}
    void operator()() {
      ++boundary_;
      if (stop_requested() && seconds_since_stop_request() > shared_.grace_) {
        long long none = 0;
        shared_.at_.compare_exchange_strong(none, boundary_ + 1);
      }
      if (shared_.at_ == boundary_) throw StepAbandoned();
    }

   private:
    Abandonment& shared_;
    long long boundary_ = 0;
  };

 private:
  double grace_;
  std::atomic<long long> at_{0};
};

}  // namespace untied
