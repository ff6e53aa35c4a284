// Data files as bytes at 64-bit offsets, and as lines. Read with pread and never mapped: touching a mapped page of a
// file that shrank kills the process (SIGBUS), while a short read can be told to the user.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/size.h"

namespace untied {

class InputFile {
 public:
  explicit InputFile(const std::string& path);  // throws InputError
  ~InputFile();
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;

  const std::string& path() const { return path_; }
  dim_t size() const;

  // Fills `to` from `offset` on; returns how many bytes there were, fewer only at the end of the file.
  dim_t read(dim_t offset, std::span<char> to) const;
  // All of [offset, offset + length), or InputError if the file has become shorter.
  std::string read_exactly(dim_t offset, dim_t length) const;

 private:
  std::string path_;
  int fd_;
};

// The lines of a file from its start, without their newline; a UTF-8 byte order mark at the start is skipped. A line
// may be as long as memory allows.
class LineReader {
 public:
  explicit LineReader(const InputFile& file);

  bool next();                                     // false at the end of the file
  std::string_view line() const { return line_; }  // valid until next()
  dim_t offset() const { return offset_; }         // of the line in the file
  dim_t number() const { return number_; }         // from 1

 private:
  bool fill();

  const InputFile& file_;
  std::vector<char> block_;
  std::string_view rest_;  // of the block
  std::string long_line_;  // a line that crosses a block's end
  std::string_view line_;
  dim_t next_block_ = 0, next_offset_ = 0, offset_ = 0, number_ = 0;
};

}  // namespace untied
