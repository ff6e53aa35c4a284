// Tells a person waiting for a long step where it is: the block it is in and how long it has been there. A line that is
// rewritten on a terminal, a plain line a minute elsewhere.
#pragma once

#include <chrono>
#include <condition_variable>
#include <thread>

#include "base/format.h"
#include "base/place.h"
#include "base/size.h"
#include "train/run_log.h"

namespace untied {

class Progress {
 public:
  Progress(RunLog& log, const Place& place);
  ~Progress();
  void begin_step(dim_t step, dim_t steps);
  void end_step(double seconds);  // the last step's duration says when this one will end

 private:
  void watch();
  std::string line(double in_step) const;

  RunLog& log_;
  const Place& place_;
  std::mutex mutex_;
  std::condition_variable wake_;
  bool done_ = false;
  dim_t step_ = 0, steps_ = 0;
  double last_seconds_ = 0;
  std::chrono::steady_clock::time_point began_;
  std::thread watcher_;
};

}  // namespace untied
