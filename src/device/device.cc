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

void Device::check_rows(const Tensor& t) {
  CHECK(t.defined(), "copy or zero of an undefined tensor");
  CHECK(t.stride(t.rank() - 1) == 1 || t.dim(t.rank() - 1) <= 1, "the last dimension of {} is strided", t.str());
}

void Device::check_copy(const Tensor& dst, const Tensor& src) {
  CHECK(dst.dtype() == src.dtype() && dst.shape() == src.shape(), "copy of {} to {}", src.str(), dst.str());
  check_rows(dst), check_rows(src);
}

Device::TimeMark Device::mark(StreamKind) { return std::make_shared<Clock::time_point>(Clock::now()); }

double Device::seconds_between(const TimeMark& begin, const TimeMark& end) {
  const auto at = [](const TimeMark& mark) { return *static_cast<const Clock::time_point*>(mark.get()); };
  return std::chrono::duration<double>(at(end) - at(begin)).count();
}

}  // namespace untied
