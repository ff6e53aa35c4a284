#include "io/documents.h"

#include <glob.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cerrno>
#include <cstring>
#include <string_view>
#include <utility>

#include "base/error.h"

namespace untied {
namespace {

constexpr dim_t kTextBlock = dim_t{1} << 20;  // bytes read at once of a text file

constexpr std::string_view kRowExtensions[] = {".jsonl", ".ndjson", ".json"};
// Refused, lest they be read as plain text.
constexpr std::string_view kOtherExtensions[] = {".npy", ".npz", ".bin", ".idx", ".parquet", ".arrow",
                                                 ".gz",  ".zst", ".xz",  ".bz2", ".zip",     ".tar"};

FileKind kind_of(const std::string& path) {
  const std::string name = path.substr(path.find_last_of('/') + 1);  // all of it when there is no slash
  const auto dot = name.find_last_of('.');
  std::string extension = dot == name.npos ? "" : name.substr(dot);
  for (char& c : extension) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  const auto is_one_of = [&](std::span<const std::string_view> known) {
    return std::find(known.begin(), known.end(), extension) != known.end();
  };
  if (is_one_of(kOtherExtensions))
    throw InputError("{}: {} files are not supported yet; data is .jsonl or plain text", path, extension);
  return is_one_of(kRowExtensions) ? FileKind::kRows : FileKind::kText;
}

// nullopt when there is no such file.
std::optional<DataFile> data_file(const std::string& path) {
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0) {
    if (errno == ENOENT || errno == ENOTDIR) return std::nullopt;
    throw InputError("{}: {}", path, std::strerror(errno));
  }
  if (S_ISDIR(info.st_mode)) throw InputError("{}: a folder; name its files, as in \"{}/*.jsonl\"", path, path);
  if (!S_ISREG(info.st_mode)) throw InputError("{}: not a regular file, and data is read more than once", path);
  return DataFile{path, kind_of(path)};
}

std::vector<std::string> expand(const std::string& pattern) {
  glob_t matches{};
  const int failed = ::glob(pattern.c_str(), GLOB_NOSORT, nullptr, &matches);
  std::vector<std::string> paths;
  if (failed == 0) paths.assign(matches.gl_pathv, matches.gl_pathv + matches.gl_pathc);
  ::globfree(&matches);
  if (failed != 0 && failed != GLOB_NOMATCH) throw InputError("{}: a folder of this pattern cannot be read", pattern);
  std::sort(paths.begin(), paths.end());  // glob's own order follows the locale
  return paths;
}

void refuse_lfs_pointer(const InputFile& file) {
  constexpr std::string_view kPointer = "version https://git-lfs.github.com/spec/";
  std::array<char, kPointer.size()> start;
  if (file.read(0, start) == static_cast<dim_t>(start.size()) &&
      std::equal(start.begin(), start.end(), kPointer.begin()))
    throw InputError("{}: a Git LFS pointer, not the data; run `git lfs pull`", file.path());
}

using Found = std::function<void(const FoundDocument&)>;

void scan_rows(const InputFile& file, std::int32_t number, const TokenRules& rules, const Found& found) {
  for (LineReader lines(file); lines.next();) {
    const std::string_view line = lines.line();
    if (line.find_first_not_of(" \t\r") == line.npos) continue;
    FoundDocument document{.place = {lines.offset(), static_cast<dim_t>(line.size()), number},
                           .where = format("{}, row {}", file.path(), lines.number())};
    const Document row = parse_row(line, rules, document.where);
    document.tokens = static_cast<dim_t>(row.ids.size());
    document.labels = row.labels.empty() ? row.ids : row.labels;
    found(document);
  }
}

void scan_text(const InputFile& file, std::int32_t number, const TokenRules& rules, const Found& found) {
  if (!rules.byte_tokenizer)
    throw InputError("{}: text without a tokenizer: `--tokenizer bytes` trains on its bytes, or give ids in .jsonl",
                     file.path());
  const dim_t size = file.size();
  if (rules.vocab < 256) {  // otherwise any byte will do, and a first pass has nothing to look at
    for (dim_t offset = 0; offset < size; offset += kTextBlock)
      check_bytes(file.read_exactly(offset, std::min(kTextBlock, size - offset)), rules, file.path(), offset);
  }
  found({.place = {0, size, number}, .where = file.path(), .tokens = size});
}

}  // namespace

std::vector<DataFile> find_data_files(const std::vector<std::string>& names) {
  std::vector<DataFile> files;
  for (const std::string& name : names) {
    if (auto file = data_file(name)) {
      files.push_back(*std::move(file));
      continue;
    }
    if (name.find_first_of("*?[") == name.npos) throw InputError("{}: no such file", name);
    const std::vector<std::string> paths = expand(name);
    if (paths.empty()) throw InputError("{}: no file matches this pattern", name);
    for (const std::string& path : paths) {
      auto file = data_file(path);
      if (!file) throw InputError("{}: no such file (a broken link that {} matches)", path, name);
      files.push_back(*std::move(file));
    }
  }
  if (files.empty()) throw InputError("no data file was named");
  return files;
}

void scan_documents(const std::vector<DataFile>& files, const TokenRules& rules, const Found& found) {
  for (std::size_t i = 0; i < files.size(); ++i) {
    const InputFile file(files[i].path);
    refuse_lfs_pointer(file);
    const auto scan = files[i].kind == FileKind::kRows ? scan_rows : scan_text;
    scan(file, static_cast<std::int32_t>(i), rules, found);
  }
}

DocumentReader::DocumentReader(std::vector<DataFile> files, const TokenRules& rules)
    : files_(std::move(files)), rules_(rules) {}

void DocumentReader::append(const Place& place, dim_t tokens, Range range, std::vector<std::int32_t>& ids,
                            std::vector<std::int32_t>& labels) {
  CHECK(0 <= range.begin && range.begin <= range.end && range.end <= tokens, "tokens [{}, {}) of {}", range.begin,
        range.end, tokens);
  if (files_[place.file].kind == FileKind::kText) {  // only the bytes asked for: the file may be of any size
    const std::string text = open(place.file).read_exactly(place.offset + range.begin, range.size());
    check_bytes(text, rules_, files_[place.file].path, range.begin);
    const auto* bytes = reinterpret_cast<const unsigned char*>(text.data());
    ids.insert(ids.end(), bytes, bytes + text.size());
    labels.insert(labels.end(), bytes, bytes + text.size());
    return;
  }
  const Document& document = row(place, tokens);
  const auto& document_labels = document.labels.empty() ? document.ids : document.labels;
  ids.insert(ids.end(), document.ids.begin() + range.begin, document.ids.begin() + range.end);
  labels.insert(labels.end(), document_labels.begin() + range.begin, document_labels.begin() + range.end);
}

const InputFile& DocumentReader::open(std::int32_t file) {
  if (file_number_ != file || !file_) {
    file_.emplace(files_[file].path);
    file_number_ = file;
  }
  return *file_;
}

const Document& DocumentReader::row(const Place& place, dim_t tokens) {
  if (row_place_ == place) return row_;
  row_place_.reset();
  const std::string text = open(place.file).read_exactly(place.offset, place.length);
  const std::string where = format("{}, changed since it was first read, at offset {}", file_->path(), place.offset);
  row_ = parse_row(text, rules_, where);
  if (static_cast<dim_t>(row_.ids.size()) != tokens)
    throw InputError("{}: {} tokens where there were {}", where, row_.ids.size(), tokens);
  row_place_ = place;
  return row_;
}

}  // namespace untied
