// The safetensors format: 8 bytes of header length, a JSON header, the tensors' bytes.
// Parsing looks at bytes only, checks every number before using it, and is fuzzed (fuzz/safetensors_fuzz.cc).
// Rules: docs of the format, and what its reference implementation enforces (header of at most 100 MB, no holes, no
// overlap, no bytes left over). Where that implementation is lenient (duplicate names), this one is not.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "io/file.h"
#include "io/file_dtype.h"

namespace untied {

struct SafetensorsEntry {
  std::string name;
  FileDType dtype = FileDType::kF32;
  std::vector<std::uint64_t> shape;  // empty for a scalar; sizes may be 0
  std::uint64_t begin = 0, end = 0;  // bytes of the file
};

struct SafetensorsIndex {
  std::vector<SafetensorsEntry> tensors;        // in the order of their bytes
  std::map<std::string, std::string> metadata;  // "__metadata__"
};

// `start_of_file` holds the first bytes of a file of `file_size` bytes: all of the header, and as much else as it likes.
// Throws InputError, starting with `where`.
SafetensorsIndex parse_safetensors_header(std::span<const std::byte> start_of_file, std::uint64_t file_size,
                                          const std::string& where);

// A tensor where it lies in its file: row-major, little-endian, at any alignment.
struct TensorData {
  FileDType dtype = FileDType::kF32;
  std::vector<std::uint64_t> shape;
  std::span<const std::byte> bytes;
};

class SafetensorsFile {
 public:
  explicit SafetensorsFile(const std::string& path);
  const std::string& path() const { return file_.path(); }
  const std::vector<SafetensorsEntry>& tensors() const { return index_.tensors; }
  std::optional<TensorData> find(const std::string& name) const;

 private:
  MappedFile file_;
  SafetensorsIndex index_;
  std::map<std::string, std::size_t> by_name_;
};

// Writes one file: declare all tensors, then their values in any order and from any thread.
// The layout is that of the reference implementation, so the same tensors give the same bytes.
class SafetensorsWriter {
 public:
  struct Declaration {
    std::string name;
    FileDType dtype;  // F32, BF16 or F16
    std::vector<std::uint64_t> shape;
  };

  // Reserves the whole file and writes the header. The file must be new.
  SafetensorsWriter(const std::string& path, std::vector<Declaration> tensors);

  // values[0..n) become the tensor's elements from `offset` on. Each element must be written exactly once.
  void write(const std::string& name, std::uint64_t offset, const float* values, std::uint64_t n);

  // Throws InternalError if a tensor is not complete. Then syncs the file.
  void finish();

 private:
  struct Place {
    FileDType dtype;
    std::uint64_t begin, size;               // first byte in the file, elements
    std::atomic<std::uint64_t> written = 0;  // elements
    Place(FileDType dtype, std::uint64_t begin, std::uint64_t size) : dtype(dtype), begin(begin), size(size) {}
  };
  std::map<std::string, Place> places_;
  std::optional<OutputFile> file_;
};

}  // namespace untied
