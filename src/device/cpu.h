// The cpu device: host memory, compute in the calling thread.
#pragma once

#include "device/device.h"

namespace untied {

struct CpuDeviceOptions {
  int threads = 1;
  // Copies on the copy streams are queued and run only when somebody waits for them, as late as the rules allow. A reader
  // that forgot to wait then sees old data every time, not once in a thousand runs: the tests run this way.
  bool lazy_copies = false;
};
std::unique_ptr<Device> make_cpu_device(const CpuDeviceOptions& options);

}  // namespace untied
