#include "io/safetensors.h"

#include <algorithm>
#include <string_view>
#include <tuple>

#include "base/error.h"
#include "io/json.h"

namespace untied {
namespace {

constexpr std::uint64_t kLengthBytes = 8;
constexpr std::uint64_t kMaxHeader = 100'000'000;
constexpr std::string_view kMetadata = "__metadata__";

bool multiply(std::uint64_t a, std::uint64_t b, std::uint64_t* product) {
  return !__builtin_mul_overflow(a, b, product);
}

// Bytes of a tensor, or nullopt when they do not fit in 64 bits or are no whole number (packed types).
std::optional<std::uint64_t> bytes_of(FileDType dtype, const std::vector<std::uint64_t>& shape) {
  std::uint64_t bits = 1;
  for (std::uint64_t size : shape)
    if (!multiply(bits, size, &bits)) return std::nullopt;
  if (!multiply(bits, static_cast<std::uint64_t>(bits_of(dtype)), &bits) || bits % 8 != 0) return std::nullopt;
  return bits / 8;
}

std::string_view text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

std::uint64_t little_endian(std::span<const std::byte, kLengthBytes> bytes) {
  std::uint64_t value = 0;
  for (std::size_t i = kLengthBytes; i-- > 0;) value = value << 8 | static_cast<std::uint64_t>(bytes[i]);
  return value;
}

// The JSON text between the length and the data.
std::string_view header_text(std::span<const std::byte> start, std::uint64_t file_size, const std::string& where) {
  if (text_of(start).starts_with("version https://git-lfs"))
    throw InputError("{}: is a Git LFS pointer, not the file itself; `git lfs pull` fetches it", where);
  if (file_size < kLengthBytes) throw InputError("{}: {} bytes are too few for a safetensors file", where, file_size);
  CHECK(start.size() >= kLengthBytes, "the start of {} ends after {} bytes", where, start.size());
  const std::uint64_t length = little_endian(start.first<kLengthBytes>());
  if (length > kMaxHeader)
    throw InputError("{}: not a safetensors file: the header would be {} bytes long, at most {} are legal", where,
                     length, kMaxHeader);
  if (length > file_size - kLengthBytes)
    throw InputError("{}: the header is {} bytes long, but only {} follow; is the file cut off?", where, length,
                     file_size - kLengthBytes);
  CHECK(length <= start.size() - kLengthBytes, "the start of {} ends inside the header", where);
  const std::string_view header = text_of(start.subspan(kLengthBytes, length));
  if (!header.starts_with('{'))
    throw InputError("{}: not a safetensors file: the header does not begin with '{{'", where);
  return header;
}

// Reads one tensor's row of the header. `begin` and `end` count from the start of the data.
class EntryReader {
 public:
  EntryReader(const std::string& name, const Json& row, const std::string& where)
      : name_(name), row_(row), where_(where) {
    if (!row.is_object()) fail("is not described by an object");
  }

  SafetensorsEntry read() const {
    SafetensorsEntry entry;
    entry.name = name_;
    entry.dtype = dtype();
    entry.shape = numbers("shape");
    const std::vector<std::uint64_t> offsets = numbers("data_offsets");
    if (offsets.size() != 2) fail(format("data_offsets has {} numbers, expected [begin, end]", offsets.size()));
    entry.begin = offsets[0];
    entry.end = offsets[1];
    if (entry.begin > entry.end) fail(format("data_offsets [{}, {}] run backwards", entry.begin, entry.end));
    const std::optional<std::uint64_t> bytes = bytes_of(entry.dtype, entry.shape);
    if (!bytes)
      fail(format("shape {} of {} overflows or ends inside a byte", shown(field("shape")), name_of(entry.dtype)));
    if (*bytes != entry.end - entry.begin)
      fail(format("shape {} of {} takes {} bytes, data_offsets give {}", shown(field("shape")), name_of(entry.dtype),
                  *bytes, entry.end - entry.begin));
    return entry;
  }

 private:
  const Json& field(const char* key) const {
    const auto found = row_.find(key);
    if (found == row_.end()) fail(format("has no {}", key));
    return *found;
  }

  FileDType dtype() const {
    const Json& value = field("dtype");
    const auto dtype = value.is_string() ? file_dtype_named(value.get_ref<const std::string&>()) : std::nullopt;
    if (!dtype) fail(format("dtype {} is not one of the format's", shown(value)));
    return *dtype;
  }

  std::vector<std::uint64_t> numbers(const char* key) const {
    const Json& list = field(key);
    if (!list.is_array()) fail(format("{} is not a list of sizes", key));
    std::vector<std::uint64_t> values;
    for (const Json& value : list) {
      if (!value.is_number_unsigned()) fail(format("{} holds {}, expected a whole number from 0", key, shown(value)));
      values.push_back(value.get<std::uint64_t>());
    }
    return values;
  }

  [[noreturn]] void fail(const std::string& what) const {
    throw InputError("{}: tensor {}: {}", where_, shown(name_), what);
  }

  const std::string& name_;
  const Json& row_;
  const std::string& where_;
};

std::map<std::string, std::string> read_metadata(const Json& value, const std::string& where) {
  std::map<std::string, std::string> metadata;
  if (value.is_null()) return metadata;  // the reference implementation takes it for absent
  if (!value.is_object()) throw InputError("{}: {} is not an object of strings", where, kMetadata);
  for (const auto& [key, text] : value.items()) {
    if (!text.is_string()) throw InputError("{}: {} entry {} is not a string", where, kMetadata, shown(key));
    metadata[key] = text.get<std::string>();
  }
  return metadata;
}

// The tensors must tile the data: from its start to its end, without a hole or an overlap.
void check_tiling(const std::vector<SafetensorsEntry>& tensors, std::uint64_t data_size, const std::string& where) {
  std::uint64_t reached = 0;
  for (const SafetensorsEntry& entry : tensors) {
    if (entry.begin != reached)
      throw InputError("{}: tensor {} begins at byte {} of the data, but the one before ends at {} ({})", where,
                       shown(entry.name), entry.begin, reached, entry.begin < reached ? "overlap" : "hole");
    reached = entry.end;
  }
  if (reached != data_size)
    throw InputError("{}: the tensors end at byte {} of the data, the file at {}{}", where, reached, data_size,
                     reached > data_size ? "; is the file cut off?" : "");
}

}  // namespace

SafetensorsIndex parse_safetensors_header(std::span<const std::byte> start_of_file, std::uint64_t file_size,
                                          const std::string& where) {
  const std::string_view text = header_text(start_of_file, file_size, where);
  const Json header = parse_json(text, where + " (header)");
  SafetensorsIndex index;
  for (const auto& [name, row] : header.items()) {
    if (name == kMetadata) index.metadata = read_metadata(row, where);
    else index.tensors.push_back(EntryReader(name, row, where).read());
  }
  std::stable_sort(index.tensors.begin(), index.tensors.end(),
                   [](const auto& a, const auto& b) { return std::tie(a.begin, a.end) < std::tie(b.begin, b.end); });
  const std::uint64_t data_begin = kLengthBytes + text.size();
  check_tiling(index.tensors, file_size - data_begin, where);
  for (SafetensorsEntry& entry : index.tensors) {
    entry.begin += data_begin;
    entry.end += data_begin;
  }
  return index;
}

SafetensorsFile::SafetensorsFile(const std::string& path)
    : file_(path), index_(parse_safetensors_header(file_.bytes(), file_.size(), path)) {
  for (std::size_t i = 0; i < index_.tensors.size(); ++i) by_name_[index_.tensors[i].name] = i;
}

std::optional<TensorData> SafetensorsFile::find(const std::string& name) const {
  const auto found = by_name_.find(name);
  if (found == by_name_.end()) return std::nullopt;
  const SafetensorsEntry& entry = index_.tensors[found->second];
  return TensorData{entry.dtype, entry.shape, file_.bytes().subspan(entry.begin, entry.end - entry.begin)};
}

SafetensorsWriter::SafetensorsWriter(const std::string& path, std::vector<Declaration> tensors) {
  // Descending alignment, then names: every tensor is then aligned to its element.
  std::sort(tensors.begin(), tensors.end(), [](const Declaration& a, const Declaration& b) {
    return a.dtype != b.dtype ? a.dtype > b.dtype : a.name < b.name;
  });
  // Pairs, not a Json object: that searches for each key it adds.
  std::string header = R"({"__metadata__":{"format":"pt"})";
  std::uint64_t data_size = 0;
  for (const Declaration& tensor : tensors) {
    CHECK(is_writable(tensor.dtype), "tensor '{}': values are not written as {}", tensor.name, name_of(tensor.dtype));
    const std::optional<std::uint64_t> bytes = bytes_of(tensor.dtype, tensor.shape);
    CHECK(bytes && *bytes < (std::uint64_t{1} << 62) - data_size, "tensor '{}' is too large for a file", tensor.name);
    const Json row = {{"dtype", name_of(tensor.dtype)},
                      {"shape", tensor.shape},
                      {"data_offsets", {data_size, data_size + *bytes}}};
    header += "," + Json(tensor.name).dump() + ":" + row.dump();
    const std::uint64_t size = *bytes * 8 / static_cast<std::uint64_t>(bits_of(tensor.dtype));
    CHECK(places_.try_emplace(tensor.name, tensor.dtype, data_size, size).second, "tensor '{}' is declared twice",
          tensor.name);
    data_size += *bytes;
  }
  header += "}";
  header.resize((header.size() + 7) / 8 * 8, ' ');
  CHECK(header.size() <= kMaxHeader, "{}: the header would be {} bytes long", path, header.size());

  const std::uint64_t data_begin = kLengthBytes + header.size();
  for (auto& [name, place] : places_) place.begin += data_begin;
  std::string start;
  for (int shift = 0; shift < 64; shift += 8) start += static_cast<char>(header.size() >> shift & 0xff);
  start += header;
  file_.emplace(path, data_begin + data_size);
  file_->write(0, std::as_bytes(std::span(start)));
}

void SafetensorsWriter::write(const std::string& name, std::uint64_t offset, const float* values, std::uint64_t n) {
  const auto found = places_.find(name);
  CHECK(found != places_.end(), "{} has no tensor '{}'", file_->path(), name);
  Place& place = found->second;
  CHECK(offset <= place.size && n <= place.size - offset, "tensor '{}': elements [{}, {} + {}) of {}", name, offset,
        offset, n, place.size);
  const std::uint64_t element = static_cast<std::uint64_t>(bits_of(place.dtype)) / 8;
  constexpr std::uint64_t kChunk = 256 << 10;  // elements: the conversion stays in the cache
  std::vector<std::byte> bytes(std::min(n, kChunk) * element);
  for (std::uint64_t done = 0; done < n; done += kChunk) {
    const std::uint64_t count = std::min(n - done, kChunk);
    from_f32(values + done, place.dtype, count, bytes.data());
    file_->write(place.begin + (offset + done) * element, std::span(bytes).first(count * element));
  }
  place.written += n;
}

void SafetensorsWriter::finish() {
  for (const auto& [name, place] : places_)
    CHECK(place.written == place.size, "tensor '{}': {} of {} elements were written", name, place.written.load(),
          place.size);
  file_->sync();
}

}  // namespace untied
