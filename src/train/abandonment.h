// How the ranks of a process agree to give up a step that would outlast --grace after a stop signal.
#pragma once

#include <algorithm>
#include <functional>
#include <mutex>

#include "base/stop_signal.h"
#include "train/step.h"

namespace untied {

// Shared by the ranks. Whoever first sees at a block boundary that time is up names the boundary after the last that any rank
// has reached, and there all stop. Ranks need not be at the same one: on GPUs they run ahead of each other.
class Abandonment {
 public:
  explicit Abandonment(double grace_seconds)
      : Abandonment([grace_seconds] { return stop_requested() && seconds_since_stop_request() > grace_seconds; }) {}
  explicit Abandonment(std::function<bool()> time_is_up) : time_is_up_(std::move(time_is_up)) {}

  // A rank's `between_blocks`; the boundaries of all steps are counted on.
  class Rank {
   public:
    explicit Rank(Abandonment& shared) : shared_(shared) {}
    void operator()() {
      const std::lock_guard lock(shared_.mutex_);
      shared_.reached_ = std::max(shared_.reached_, ++boundary_);
      if (shared_.at_ == 0 && shared_.time_is_up_()) shared_.at_ = shared_.reached_ + 1;
      if (shared_.at_ == boundary_) throw StepAbandoned();
    }

   private:
    Abandonment& shared_;
    long long boundary_ = 0;
  };

 private:
  const std::function<bool()> time_is_up_;
  std::mutex mutex_;
  long long reached_ = 0, at_ = 0;
};

}  // namespace untied
