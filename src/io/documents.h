// Documents in files: which files there are, where in them each document stands, and its tokens on demand.
//
// The first pass reads every file from end to end and keeps no token: a document is 24 bytes of place until its
// sequence is built, so data may be far larger than memory.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/size.h"
#include "io/input_file.h"
#include "io/rows.h"

namespace untied {

enum class FileKind {
  kRows,  // .jsonl, .ndjson, .json: one document per line
  kText,  // any other name: the whole file is one document, byte for byte (line ends and a byte order mark too)
};

struct DataFile {
  std::string path;
  FileKind kind = FileKind::kRows;
};

// The files that `names` stand for, in that order; a name with * ? or [ that is no file itself is a pattern, and its
// matches come sorted by bytes. Throws InputError: no such file, no match, a folder, a kind that is not supported yet.
std::vector<DataFile> find_data_files(const std::vector<std::string>& names);

// Where a document stands.
struct Place {
  dim_t offset = 0, length = 0;  // bytes
  std::int32_t file = 0;
  constexpr bool operator==(const Place&) const = default;
};

// What the first pass tells of a document.
struct FoundDocument {
  Place place;
  std::string where;  // for messages: file and row
  dim_t tokens = 0;
  std::span<const std::int32_t> labels = {};  // [tokens], during the call only; empty for text, labelled by its bytes
};

// Reads all of all files, checks every row, and calls `found` for each document, those of no token too.
void scan_documents(const std::vector<DataFile>& files, const TokenRules& rules,
                    const std::function<void(const FoundDocument&)>& found);

// Reads documents again. Holds the last file open and the last row parsed, since the pieces of a long document, and the
// documents of a file, mostly follow each other. For one thread at a time.
class DocumentReader {
 public:
  DocumentReader(std::vector<DataFile> files, const TokenRules& rules);

  // Appends ids and (unshifted) labels of the tokens in `range` of the document at `place`, which had `tokens` tokens
  // in the first pass. Throws InputError when the file is gone, is shorter, or holds something else by now.
  void append(const Place& place, dim_t tokens, Range range, std::vector<std::int32_t>& ids,
              std::vector<std::int32_t>& labels);

 private:
  const InputFile& open(std::int32_t file);
  const Document& row(const Place& place, dim_t tokens);

  std::vector<DataFile> files_;
  TokenRules rules_;
  std::optional<InputFile> file_;
  std::int32_t file_number_ = -1;
  std::optional<Place> row_place_;
  Document row_;
};

}  // namespace untied
