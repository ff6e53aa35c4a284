#include "device/device.h"

#include <chrono>

namespace untied {
namespace {
using Clock = std::chrono::steady_clock;
}

const char* name_of(Backend backend) {
  switch (backend) {
    case Backend::kMeta: return "meta";
    case Backend::kCpu: return "cpu";
    case Backend::kCuda: return "cuda";
  }
  return "?";
}

const char* name_of(StreamKind stream) {
  switch (stream) {
    case StreamKind::kCompute: return "compute";
    case StreamKind::kComm: return "communication";
    case StreamKind::kToHost: return "to host";
    case StreamKind::kToDevice: return "to device";
  }
  return "?";
}

Device::TimeMark Device::mark(StreamKind) { return std::make_shared<Clock::time_point>(Clock::now()); }

double Device::seconds_between(const TimeMark& begin, const TimeMark& end) {
  const auto at = [](const TimeMark& mark) { return *static_cast<const Clock::time_point*>(mark.get()); };
  return std::chrono::duration<double>(at(end) - at(begin)).count();
}

}  // namespace untied
