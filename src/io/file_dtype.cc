#include "io/file_dtype.h"

#include <Eigen/Core>  // half and bfloat16
#include <cstring>

#include "base/error.h"

namespace untied {
namespace {

struct Row {
  FileDType dtype;
  const char* name;
  int bits;
};

constexpr Row kRows[] = {
    {FileDType::kBool, "BOOL", 8},
    {FileDType::kF4, "F4", 4},
    {FileDType::kF6E2M3, "F6_E2M3", 6},
    {FileDType::kF6E3M2, "F6_E3M2", 6},
    {FileDType::kU8, "U8", 8},
    {FileDType::kI8, "I8", 8},
    {FileDType::kF8E5M2, "F8_E5M2", 8},
    {FileDType::kF8E4M3, "F8_E4M3", 8},
    {FileDType::kF8E5M2Fnuz, "F8_E5M2FNUZ", 8},
    {FileDType::kF8E4M3Fnuz, "F8_E4M3FNUZ", 8},
    {FileDType::kF8E8M0, "F8_E8M0", 8},
    {FileDType::kI16, "I16", 16},
    {FileDType::kU16, "U16", 16},
    {FileDType::kF16, "F16", 16},
    {FileDType::kBF16, "BF16", 16},
    {FileDType::kI32, "I32", 32},
    {FileDType::kU32, "U32", 32},
    {FileDType::kF32, "F32", 32},
    {FileDType::kC64, "C64", 64},
    {FileDType::kF64, "F64", 64},
    {FileDType::kI64, "I64", 64},
    {FileDType::kU64, "U64", 64},
};

constexpr bool rows_follow_the_enum() {
  int next = 0;
  for (const Row& row : kRows)
    if (static_cast<int>(row.dtype) != next++) return false;
  return true;
}
static_assert(rows_follow_the_enum());

const Row& row_of(FileDType dtype) { return kRows[static_cast<int>(dtype)]; }

// Through memcpy: a tensor may start at any byte of its file. Compilers turn it into plain unaligned vector loads.
template <class T>
void widen(const std::byte* source, std::size_t n, float* target) {
  for (std::size_t i = 0; i < n; ++i) {
    T value;
    std::memcpy(&value, source + i * sizeof(T), sizeof(T));
    target[i] = static_cast<float>(value);
  }
}

template <class T>
void narrow(const float* source, std::size_t n, std::byte* target) {
  for (std::size_t i = 0; i < n; ++i) {
    const T value(source[i]);
    std::memcpy(target + i * sizeof(T), &value, sizeof(T));
  }
}

}  // namespace

const char* name_of(FileDType dtype) { return row_of(dtype).name; }

std::optional<FileDType> file_dtype_named(std::string_view name) {
  for (const Row& row : kRows)
    if (name == row.name) return row.dtype;
  return std::nullopt;
}

int bits_of(FileDType dtype) { return row_of(dtype).bits; }

bool is_writable(FileDType dtype) {
  return dtype == FileDType::kF32 || dtype == FileDType::kBF16 || dtype == FileDType::kF16;
}

bool is_readable(FileDType dtype) { return is_writable(dtype) || dtype == FileDType::kF64; }

FileDType file_dtype(DType dtype) {
  switch (dtype) {
    case DType::kF32: return FileDType::kF32;
    case DType::kBF16: return FileDType::kBF16;
    case DType::kF16: return FileDType::kF16;
    case DType::kF64: return FileDType::kF64;
    default: throw InternalError("{} is no type of a parameter in a file", name_of(dtype));
  }
}

void to_f32(const std::byte* source, FileDType dtype, std::size_t n, float* target) {
  switch (dtype) {
    case FileDType::kF32:
      if (n > 0) std::memcpy(target, source, n * sizeof(float));
      return;
    case FileDType::kBF16: return widen<Eigen::bfloat16>(source, n, target);
    case FileDType::kF16: return widen<Eigen::half>(source, n, target);
    case FileDType::kF64: return widen<double>(source, n, target);
    default: CHECK(false, "values are not read from {}", name_of(dtype));
  }
}

void from_f32(const float* source, FileDType dtype, std::size_t n, std::byte* target) {
  switch (dtype) {
    case FileDType::kF32:
      if (n > 0) std::memcpy(target, source, n * sizeof(float));
      return;
    case FileDType::kBF16: return narrow<Eigen::bfloat16>(source, n, target);
    case FileDType::kF16: return narrow<Eigen::half>(source, n, target);
    default: CHECK(false, "values are not written as {}", name_of(dtype));
  }
}

}  // namespace untied
