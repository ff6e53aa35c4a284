// Element types: what a tensor holds in memory. Checkpoint files may hold more (io/safetensors.h).
#pragma once

#include <cstddef>
#include <cstdint>

namespace untied {

enum class DType : std::uint8_t { kF32, kBF16, kF16, kF64, kI32, kI64, kU8 };

constexpr std::size_t size_of(DType dtype) {
  switch (dtype) {
    case DType::kF32:
    case DType::kI32: return 4;
    case DType::kBF16:
    case DType::kF16: return 2;
    case DType::kF64:
    case DType::kI64: return 8;
    case DType::kU8: return 1;
  }
  return 0;
}

constexpr const char* name_of(DType dtype) {
  switch (dtype) {
    case DType::kF32: return "fp32";
    case DType::kBF16: return "bf16";
    case DType::kF16: return "fp16";
    case DType::kF64: return "fp64";
    case DType::kI32: return "int32";
    case DType::kI64: return "int64";
    case DType::kU8: return "uint8";
  }
  return "?";
}

}  // namespace untied
