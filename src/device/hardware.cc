#include "device/hardware.h"

namespace untied {
namespace {

// x16 in GB/s per direction: 32 or 16 GT/s a lane, 128 of 130 bits are data.
constexpr double kPcie5 = 63.0, kPcie4 = 31.5;

struct Gpu {
  std::string_view name;  // as the driver has it; a variant (PCIe, NVL) is another name and another GPU
  HardwareLimits limits;
};

// NVIDIA's datasheets: bf16 without sparsity, NVLink halved, as they count both directions.
constexpr Gpu kGpus[] = {
    {"NVIDIA A100-SXM4-40GB", {312, 1555, 300, kPcie4}},
    {"NVIDIA A100-SXM4-80GB", {312, 2039, 300, kPcie4}},
    {"NVIDIA H100 80GB HBM3", {989.4, 3350, 450, kPcie5}},  // SXM
    {"NVIDIA H200", {989.4, 4800, 450, kPcie5}},            // SXM
    {"NVIDIA B200", {2250, 8000, 900, kPcie5}},
};

}  // namespace

std::optional<HardwareLimits> limits_of(std::string_view device) {
  for (const Gpu& gpu : kGpus)
    if (gpu.name == device) return gpu.limits;
  return std::nullopt;
}

}  // namespace untied
