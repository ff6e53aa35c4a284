#include "train/progress.h"

#include <unistd.h>

namespace untied {
namespace {
using Clock = std::chrono::steady_clock;
}

Progress::Progress(RunLog& log, const Place& place) : log_(log), place_(place), began_(Clock::now()) {
  watcher_ = std::thread([this] { watch(); });
}

Progress::~Progress() {
  {
    std::lock_guard lock(mutex_);
    done_ = true;
  }
  wake_.notify_one();
  watcher_.join();
  log_.progress("");
}

void Progress::begin_step(dim_t step, dim_t steps) {
  std::lock_guard lock(mutex_);
  step_ = step;
  steps_ = steps;
  began_ = Clock::now();
}

void Progress::end_step(double seconds) {
  std::lock_guard lock(mutex_);
  last_seconds_ = seconds;
}

std::string Progress::line(double in_step) const {
  std::string text = step_ == 0
                         ? place_.snapshot()
                         : format("step {} of {}: {}, {}", step_, steps_, place_.snapshot(), format_seconds(in_step));
  if (last_seconds_ > 0) {
    const double left = last_seconds_ * static_cast<double>(steps_ - step_ + 1) - in_step;
    if (left > 0) text += format("; about {} left", format_seconds(left));
  }
  return text;
}

void Progress::watch() {
  const bool terminal = isatty(STDERR_FILENO) != 0;
  const auto period = terminal ? std::chrono::milliseconds(500) : std::chrono::milliseconds(60000);
  std::unique_lock lock(mutex_);
  while (!wake_.wait_for(lock, period, [this] { return done_; }))
    log_.progress(line(std::chrono::duration<double>(Clock::now() - began_).count()));
}

}  // namespace untied
