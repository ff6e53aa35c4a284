#include "io/file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <system_error>
#include <utility>

#include "base/error.h"

namespace untied {
namespace {

std::string system_message(int code) { return std::generic_category().message(code); }

[[noreturn]] void fail_write(const std::string& path, const char* action) {
  const int code = errno;
  throw RunError("{}: cannot {}: {}", path, action, system_message(code));
}

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

// Closes at the end of the scope.
struct Descriptor {
  int value;
  ~Descriptor() {
    if (value >= 0) ::close(value);
  }
};

}  // namespace

MappedFile::MappedFile(const std::string& path) : path_(path) {
  const Descriptor file{::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)};  // a FIFO must not block
  if (file.value < 0) throw InputError("{}: {}", path, errno == ENOENT ? "no such file" : system_message(errno));
  struct stat status {};
  if (::fstat(file.value, &status) != 0) throw InputError("{}: {}", path, system_message(errno));
  if (S_ISDIR(status.st_mode)) throw InputError("{}: is a folder, expected a file", path);
  if (!S_ISREG(status.st_mode)) throw InputError("{}: is not a regular file", path);
  if (status.st_size == 0) throw InputError("{}: the file is empty", path);
  size_ = static_cast<std::size_t>(status.st_size);
  void* address = ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, file.value, 0);
  if (address == MAP_FAILED) throw InputError("{}: cannot map the file: {}", path, system_message(errno));
  data_ = static_cast<const std::byte*>(address);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)), data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

MappedFile::~MappedFile() {
  if (data_) ::munmap(const_cast<std::byte*>(data_), size_);
}

OutputFile::OutputFile(const std::string& path, std::uint64_t size) : path_(path) {
  descriptor_ = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
  if (descriptor_ < 0) fail_write(path, "create the file");
  const auto length = static_cast<off_t>(size);
  // Some file systems cannot reserve; there the size alone must do.
  if (size == 0 || ::fallocate(descriptor_, 0, 0, length) == 0) return;
  if ((errno == EOPNOTSUPP || errno == ENOSYS) && ::ftruncate(descriptor_, length) == 0) return;
  const int code = errno;
  ::close(descriptor_);
  throw RunError("{}: cannot reserve {}: {}", path, format_bytes(static_cast<double>(size)), system_message(code));
}

OutputFile::~OutputFile() { ::close(descriptor_); }

void OutputFile::write(std::uint64_t offset, std::span<const std::byte> bytes) {
  write_all(descriptor_, offset, bytes, path_);
}

void OutputFile::sync() {
  if (::fsync(descriptor_) != 0) fail_write(path_, "sync");
}

void write_all(int descriptor, std::uint64_t offset, std::span<const std::byte> bytes, const std::string& path) {
  constexpr std::size_t kMaxWrite = std::size_t{1} << 30;  // Linux takes just under 2 GiB at once
  while (!bytes.empty()) {
    const ssize_t written =
        ::pwrite(descriptor, bytes.data(), std::min(bytes.size(), kMaxWrite), static_cast<off_t>(offset));
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) fail_write(path, "write");
    offset += static_cast<std::uint64_t>(written);
    bytes = bytes.subspan(static_cast<std::size_t>(written));
  }
}

void sync_folder(const std::string& path) {
  const Descriptor folder{::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)};
  if (folder.value < 0) fail_write(path, "open the folder");
  // EINVAL: a file system that does not sync folders.
  if (::fsync(folder.value) != 0 && errno != EINVAL) fail_write(path, "sync the folder");
}

void write_file(const std::string& path, std::string_view text) {
  OutputFile file(path, 0);
  file.write(0, bytes_of(text));
  file.sync();
}

void write_file_atomically(const std::string& path, std::string_view text) {
  const std::filesystem::path final_path(path);
  const std::filesystem::path folder = final_path.has_parent_path() ? final_path.parent_path() : ".";
  const std::string temporary = folder / format(".{}.tmp-{}", final_path.filename().string(), ::getpid());
  ::unlink(temporary.c_str());  // of a process that died with our number
  try {
    write_file(temporary, text);
    if (::rename(temporary.c_str(), path.c_str()) != 0) fail_write(path, "rename into place");
  } catch (...) {
    ::unlink(temporary.c_str());
    throw;
  }
  sync_folder(folder);
}

void copy_file(const std::string& from, const std::string& to) {
  std::error_code error;
  std::filesystem::copy_file(from, to, error);
  if (error) throw RunError("{}: cannot copy to {}: {}", from, to, error.message());
  const Descriptor file{::open(to.c_str(), O_WRONLY | O_CLOEXEC)};
  if (file.value < 0 || ::fsync(file.value) != 0) fail_write(to, "sync");
}

}  // namespace untied
