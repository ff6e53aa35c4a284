#include "base/stop_signal.h"

#include <atomic>
#include <csignal>
#include <ctime>

namespace untied {
namespace {

std::atomic<long long> requested_at_ns{0};
static_assert(std::atomic<long long>::is_always_lock_free, "a signal handler may only touch lock-free atomics");

long long now_ns() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<long long>(t.tv_sec) * 1'000'000'000 + t.tv_nsec;
}

extern "C" void on_stop_signal(int signal) {
  long long none = 0;
  if (!requested_at_ns.compare_exchange_strong(none, now_ns())) {
    std::signal(signal, SIG_DFL);
    std::raise(signal);
  }
}

}  // namespace

void catch_stop_signals() {
  std::signal(SIGTERM, on_stop_signal);
  std::signal(SIGINT, on_stop_signal);
}

bool stop_requested() { return requested_at_ns.load() != 0; }

double seconds_since_stop_request() {
  const long long at = requested_at_ns.load();
  return at == 0 ? 0 : static_cast<double>(now_ns() - at) * 1e-9;
}

}  // namespace untied
