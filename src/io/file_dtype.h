// Element types of tensors in files, and conversion from and to fp32, in which all values travel between file and engine.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "tensor/dtype.h"

namespace untied {

// Every type of the safetensors format, in the order of its specification: files list their tensors by descending type.
enum class FileDType : std::uint8_t {
  kBool,
  kF4,
  kF6E2M3,
  kF6E3M2,
  kU8,
  kI8,
  kF8E5M2,
  kF8E4M3,
  kF8E5M2Fnuz,
  kF8E4M3Fnuz,
  kF8E8M0,
  kI16,
  kU16,
  kF16,
  kBF16,
  kI32,
  kU32,
  kF32,
  kC64,
  kF64,
  kI64,
  kU64
};

const char* name_of(FileDType dtype);  // as files spell it: "BF16"
std::optional<FileDType> file_dtype_named(std::string_view name);
int bits_of(FileDType dtype);  // per element; F4 and F6_* are packed

// Files may hold any type. Values are read from F32, BF16, F16 and F64, and written as F32, BF16 and F16.
bool is_readable(FileDType dtype);
bool is_writable(FileDType dtype);
FileDType file_dtype(DType dtype);  // of the four above; InternalError for others

// Converts n values; `source` and `target` need no alignment. Narrowing rounds to the nearest, ties to even; what is too
// large becomes infinite, and a NaN stays one.
void to_f32(const std::byte* source, FileDType dtype, std::size_t n, float* target);
void from_f32(const float* source, FileDType dtype, std::size_t n, std::byte* target);

}  // namespace untied
