// What the makers of well-known GPUs say that they can do: the limits that measured rates are put beside.
#pragma once

#include <optional>
#include <string_view>

namespace untied {

struct HardwareLimits {
  double bf16_tflops = 0;  // dense matrix products with fp32 sums
  double memory_gbs = 0;   // device memory, read and written together
  double peer_gbs = 0;     // to other GPUs of the node, per direction
  double host_gbs = 0;     // to host memory, per direction
};

// Of the GPU that Device::name() calls so; nullopt when it is not in the table (the cpu never is).
std::optional<HardwareLimits> limits_of(std::string_view device);

}  // namespace untied
