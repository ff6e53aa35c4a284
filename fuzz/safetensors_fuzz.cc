// Any bytes as a safetensors file: parsed, or refused with an InputError, and what was parsed keeps the format's promises.
#include <cstdint>
#include <span>

#include "base/error.h"
#include "io/safetensors.h"

using namespace untied;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  SafetensorsIndex index;
  try {
    index = parse_safetensors_header(std::as_bytes(std::span(data, size)), size, "fuzz");
  } catch (const InputError&) {
    return 0;
  }
  std::uint64_t reached = index.tensors.empty() ? size : index.tensors.front().begin;
  for (const SafetensorsEntry& entry : index.tensors) {
    CHECK(entry.begin == reached && entry.begin <= entry.end && entry.end <= size, "tensors tile the file");
    std::uint64_t elements = 1;
    for (std::uint64_t n : entry.shape) elements *= n;
    CHECK(elements * bits_of(entry.dtype) == 8 * (entry.end - entry.begin), "the shape is that of the bytes");
    reached = entry.end;
    if (!is_readable(entry.dtype)) continue;
    std::vector<float> values(elements);
    to_f32(reinterpret_cast<const std::byte*>(data) + entry.begin, entry.dtype, elements, values.data());
  }
  CHECK(reached == size, "nothing is left over");
  return 0;
}
