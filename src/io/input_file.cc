#include "io/input_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/error.h"

namespace untied {

InputFile::InputFile(const std::string& path) : path_(path), fd_(::open(path.c_str(), O_RDONLY | O_CLOEXEC)) {
  if (fd_ < 0) throw InputError("{}: {}", path, std::strerror(errno));
}

InputFile::~InputFile() { ::close(fd_); }

dim_t InputFile::size() const {
  struct stat info {};
  if (::fstat(fd_, &info) != 0) throw InputError("{}: {}", path_, std::strerror(errno));
  return info.st_size;
}

dim_t InputFile::read(dim_t offset, std::span<char> to) const {
  std::size_t done = 0;
  while (done < to.size()) {
    const ssize_t n = ::pread(fd_, to.data() + done, to.size() - done, offset + static_cast<dim_t>(done));
    if (n == 0) break;
    if (n < 0 && errno != EINTR) throw InputError("{}: {}", path_, std::strerror(errno));
    if (n > 0) done += static_cast<std::size_t>(n);
  }
  return static_cast<dim_t>(done);
}

std::string InputFile::read_exactly(dim_t offset, dim_t length) const {
  std::string bytes(static_cast<std::size_t>(length), '\0');
  if (read(offset, bytes) < length)
    throw InputError("{}: shorter than when it was first read: {} bytes at offset {} are gone", path_, length, offset);
  return bytes;
}

LineReader::LineReader(const InputFile& file) : file_(file), block_(std::size_t{1} << 20) {
  constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";
  if (fill() && rest_.starts_with(kByteOrderMark)) {
    rest_.remove_prefix(kByteOrderMark.size());
    next_offset_ = kByteOrderMark.size();
  }
}

bool LineReader::fill() {
  const dim_t n = file_.read(next_block_, block_);
  rest_ = std::string_view(block_.data(), static_cast<std::size_t>(n));
  next_block_ += n;
  return n > 0;
}

bool LineReader::next() {
  if (rest_.empty() && !fill()) return false;
  ++number_;
  offset_ = next_offset_;
  auto newline = rest_.find('\n');
  if (newline != rest_.npos) {
    line_ = rest_.substr(0, newline);
    rest_.remove_prefix(newline + 1);
  } else {
    long_line_ = rest_;
    rest_ = {};
    while (fill()) {
      newline = rest_.find('\n');
      long_line_ += rest_.substr(0, newline);
      if (newline != rest_.npos) {
        rest_.remove_prefix(newline + 1);
        break;
      }
    }
    line_ = long_line_;
  }
  next_offset_ = offset_ + static_cast<dim_t>(line_.size()) + 1;
  return true;
}

}  // namespace untied
