#include <unistd.h>

#include <cerrno>
#include <filesystem>

#include "base/error.h"
#include "io/checkpoint.h"
#include "io/hf_config.h"

namespace untied {
namespace {

namespace fs = std::filesystem;

// The parameters of each file, as indices into the table, in its order: a file takes what fits, but at least one.
std::vector<std::vector<std::size_t>> split(const ParameterTable& table, const CheckpointFormat& format) {
  std::vector<std::vector<std::size_t>> files(1);
  std::uint64_t file_bytes = 0;
  for (std::size_t i = 0; i < table.parameters().size(); ++i) {
    const auto elements = static_cast<std::uint64_t>(table.parameters()[i].shape.size());
    const std::uint64_t bytes = elements * static_cast<std::uint64_t>(bits_of(format.dtypes[i])) / 8;
    if (!files.back().empty() && file_bytes + bytes > format.max_file_bytes) {
      files.emplace_back();
      file_bytes = 0;
    }
    files.back().push_back(i);
    file_bytes += bytes;
  }
  return files;
}

std::string file_name(std::size_t file, std::size_t count) {
  return count == 1 ? "model.safetensors" : format("model-{:05}-of-{:05}.safetensors", file + 1, count);
}

// Maps each parameter to its file. Keys are sorted, as transformers writes them.
std::string index_text(const ParameterTable& table, const CheckpointFormat& format,
                       const std::vector<std::vector<std::size_t>>& files) {
  std::uint64_t elements = 0, bytes = 0;
  nlohmann::json weight_map;
  for (std::size_t file = 0; file < files.size(); ++file) {
    for (std::size_t i : files[file]) {
      const Parameter& parameter = table.parameters()[i];
      const auto size = static_cast<std::uint64_t>(parameter.shape.size());
      elements += size;
      bytes += size * static_cast<std::uint64_t>(bits_of(format.dtypes[i])) / 8;
      weight_map[parameter.name] = file_name(file, files.size());
    }
  }
  const nlohmann::json index = {{"metadata", {{"total_parameters", elements}, {"total_size", bytes}}},
                                {"weight_map", weight_map}};
  return index.dump(2) + "\n";
}

}  // namespace

// `.<name>.tmp-<process>` beside the final folder, hence on the same file system. Gone at the end unless it was moved.
class CheckpointWriter::TemporaryFolder {
 public:
  explicit TemporaryFolder(const std::string& folder) {
    std::error_code error;
    final_ = fs::weakly_canonical(fs::absolute(folder, error), error);  // no links, no trailing slash
    if (error || final_.filename().empty()) throw ConfigError("{}: is no name for a folder", folder);
    if (fs::exists(final_, error) && !(fs::is_directory(final_, error) && fs::is_empty(final_, error)))
      throw ConfigError("{}: exists and is not an empty folder", folder);
    fs::create_directories(final_.parent_path(), error);
    path_ = final_.parent_path() / fmt::format(".{}.tmp-{}", final_.filename().string(), ::getpid());
    fs::remove_all(path_, error);  // of a process that died with our number
    if (!fs::create_directory(path_, error))
      throw RunError("{}: cannot create the folder: {}", path_.string(), error.message());
  }

  ~TemporaryFolder() {
    std::error_code error;
    if (!path_.empty()) fs::remove_all(path_, error);
  }

  std::string operator/(const std::string& name) const { return path_ / name; }

  void move_to_final() {
    sync_folder(path_);
    if (::rename(path_.c_str(), final_.c_str()) != 0) {
      const int code = errno;
      throw RunError("{}: cannot rename {} to it: {}", final_.string(), path_.string(),
                     std::generic_category().message(code));
    }
    path_.clear();
    sync_folder(final_.parent_path());
  }

 private:
  fs::path final_, path_;
};

CheckpointFormat new_checkpoint_format(const ModelConfig& config, const ParameterTable& table) {
  ModelConfig saved = config;
  if (saved.dtype == DType::kF64) saved.dtype = DType::kF32;  // training is in fp32 at most
  return {.config = hf_config_json(saved),
          .dtypes = std::vector<FileDType>(table.parameters().size(), file_dtype(saved.dtype))};
}

CheckpointWriter::CheckpointWriter(const std::string& folder, const ParameterTable& table,
                                   const CheckpointFormat& format) {
  CHECK(format.dtypes.size() == table.parameters().size(), "{} types for {} parameters", format.dtypes.size(),
        table.parameters().size());
  temporary_ = std::make_unique<TemporaryFolder>(folder);
  const std::vector<std::vector<std::size_t>> files = split(table, format);
  for (std::size_t file = 0; file < files.size(); ++file) {
    std::vector<SafetensorsWriter::Declaration> tensors;
    for (std::size_t i : files[file]) {
      const Parameter& parameter = table.parameters()[i];
      tensors.push_back({parameter.name, format.dtypes[i], {}});
      for (int d = 0; d < parameter.shape.rank(); ++d)
        tensors.back().shape.push_back(static_cast<std::uint64_t>(parameter.shape[d]));
    }
    SafetensorsWriter& writer = files_.emplace_back(*temporary_ / file_name(file, files.size()), std::move(tensors));
    for (std::size_t i : files[file]) home_[table.parameters()[i].name] = &writer;
  }
  if (files.size() > 1) write_file(*temporary_ / "model.safetensors.index.json", index_text(table, format, files));
  write_file(*temporary_ / "config.json", format.config.dump(2) + "\n");
  for (const auto& [name, content] : format.side_files) write_file(*temporary_ / name, content);
}

CheckpointWriter::~CheckpointWriter() = default;

void CheckpointWriter::write(const std::string& name, dim_t offset, dim_t n, const float* values) {
  const auto home = home_.find(name);
  CHECK(home != home_.end(), "the checkpoint has no parameter '{}'", name);
  CHECK(offset >= 0 && n >= 0, "parameter '{}': elements [{}, {} + {})", name, offset, offset, n);
  home->second->write(name, static_cast<std::uint64_t>(offset), values, static_cast<std::uint64_t>(n));
}

void CheckpointWriter::finish() {
  for (SafetensorsWriter& file : files_) file.finish();
  temporary_->move_to_final();
}

}  // namespace untied
