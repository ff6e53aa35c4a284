// Files. Reading is by mapping; writing checks every call, because a full disk shows up at any of them.
// A file that cannot be read is an InputError, one that cannot be written a RunError; both name the file and the cause.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace untied {

// A file's bytes, read-only, for as long as the object lives. Any size: pages come in when they are touched.
// The file must not shrink meanwhile (the system answers with SIGBUS).
class MappedFile {
 public:
  // Throws InputError when there is no such file, when it is a folder or anything but a regular file, or empty.
  explicit MappedFile(const std::string& path);
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  ~MappedFile();

  const std::string& path() const { return path_; }
  std::uint64_t size() const { return size_; }
  std::span<const std::byte> bytes() const { return {data_, size_}; }
  std::string_view text() const { return {reinterpret_cast<const char*>(data_), size_}; }

 private:
  std::string path_;
  const std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

// A new file of a size known beforehand, written in any order and from any thread.
class OutputFile {
 public:
  // Reserves the space, so that a full disk is found before the first byte. Replaces nothing: the file must be new.
  OutputFile(const std::string& path, std::uint64_t size);
  OutputFile(const OutputFile&) = delete;
  ~OutputFile();

  const std::string& path() const { return path_; }
  void write(std::uint64_t offset, std::span<const std::byte> bytes);
  void sync();  // what was written is on the disk when this returns

 private:
  std::string path_;
  int descriptor_ = -1;
};

// Writes all of `bytes` at `offset`, however many calls that takes. `path` is for the message.
void write_all(int descriptor, std::uint64_t offset, std::span<const std::byte> bytes, const std::string& path);

// Makes the entries of a folder (new files, renames) survive a power cut.
void sync_folder(const std::string& path);

// A new small file, synced.
void write_file(const std::string& path, std::string_view text);

// The file has its old content or all of the new one, whenever the machine stops.
void write_file_atomically(const std::string& path, std::string_view text);

// A new file with the same bytes, synced.
void copy_file(const std::string& from, const std::string& to);

}  // namespace untied
