#include <algorithm>
#include <cstring>
#include <filesystem>
#include <set>
#include <string_view>

#include "base/error.h"
#include "io/checkpoint.h"
#include "io/hf_config.h"
#include "io/hub_cache.h"

namespace untied {
namespace {

namespace fs = std::filesystem;

constexpr const char* kSingleFile = "model.safetensors";
constexpr const char* kIndexFile = "model.safetensors.index.json";
constexpr const char* kEmbedding = "model.embed_tokens.weight";
constexpr const char* kHead = "lm_head.weight";

bool is_there(const fs::path& path) {
  std::error_code error;
  return fs::exists(path, error);
}

std::string resolve(const std::string& model) {
  std::error_code error;
  if (fs::is_directory(model, error)) return model;
  if (is_there(model)) throw InputError("{}: is a file, expected the folder of a model", model);
  if (is_hub_name(model)) return find_in_hub_cache(model);
  throw InputError("{}: no such folder, expected one with config.json and safetensors files", model);
}

// A file of the folder itself: an index must not lead anywhere else.
bool is_file_name(std::string_view name) {
  return name.ends_with(".safetensors") && name.find_first_of(std::string_view("/\\\0", 3)) == std::string_view::npos;
}

std::vector<std::uint64_t> sizes_of(const Shape& shape) {
  std::vector<std::uint64_t> sizes;
  for (int i = 0; i < shape.rank(); ++i) sizes.push_back(static_cast<std::uint64_t>(shape[i]));
  return sizes;
}

// Frequencies that old files carry along; they follow from the config.
bool is_redundant(std::string_view name) { return name.ends_with(".rotary_emb.inv_freq"); }

// What makes the folder usable as it is by other programs.
bool is_side_file(std::string_view name) {
  constexpr std::string_view kNames[] = {"tokenizer.json",
                                         "tokenizer_config.json",
                                         "special_tokens_map.json",
                                         "added_tokens.json",
                                         "vocab.json",
                                         "merges.txt",
                                         "tokenizer.model",
                                         "tekken.json",
                                         "chat_template.jinja",
                                         "chat_template.json",
                                         "generation_config.json"};
  constexpr std::string_view kPrefixes[] = {"LICENSE", "USE_POLICY", "NOTICE"};
  return std::find(std::begin(kNames), std::end(kNames), name) != std::end(kNames) ||
         std::any_of(std::begin(kPrefixes), std::end(kPrefixes), [&](auto prefix) { return name.starts_with(prefix); });
}

std::map<std::string, std::string> read_side_files(const std::string& folder) {
  std::map<std::string, std::string> files;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename();
    if (!is_side_file(name) || !entry.is_regular_file()) continue;
    files[name] = entry.file_size() > 0 ? MappedFile(entry.path()).text() : "";
  }
  return files;
}

}  // namespace

CheckpointReader CheckpointReader::open(const std::string& model) {
  CheckpointReader reader;
  reader.folder_ = resolve(model);
  const fs::path folder = reader.folder_;
  const MappedFile config(folder / "config.json");
  reader.config_json_ = parse_json(config.text(), config.path());
  reader.config_ = read_hf_config(reader.config_json_, config.path());
  if (is_there(folder / kSingleFile)) {  // transformers prefers it, too, when there are both
    reader.files_.emplace_back(folder / kSingleFile);
    for (const SafetensorsEntry& entry : reader.files_[0].tensors()) reader.home_[entry.name] = 0;
  } else if (is_there(folder / kIndexFile)) {
    reader.open_indexed(folder / kIndexFile);
  } else {
    const bool pickled = is_there(folder / "pytorch_model.bin") || is_there(folder / "pytorch_model.bin.index.json");
    throw InputError("{}: has neither {} nor {}{}", model, kSingleFile, kIndexFile,
                     pickled ? "; pytorch_model.bin is not read, convert it to safetensors" : "");
  }
  return reader;
}

void CheckpointReader::open_indexed(const std::string& index_path) {
  const MappedFile index_file(index_path);
  const Json index = parse_json(index_file.text(), index_path);
  const auto weight_map = index.is_object() ? index.find("weight_map") : index.end();
  if (weight_map == index.end() || !weight_map->is_object() || weight_map->empty())
    throw InputError("{}: has no weight_map, expected an object of tensor and file names", index_path);
  std::map<std::string, std::size_t> opened;
  for (const auto& [tensor, value] : weight_map->items()) {
    if (!value.is_string() || !is_file_name(value.get_ref<const std::string&>()))
      throw InputError("{}: tensor {} is said to be in {}, expected the name of a .safetensors file in the same folder",
                       index_path, shown(tensor), shown(value));
    const auto& file_name = value.get_ref<const std::string&>();
    const auto [file, is_new] = opened.try_emplace(file_name, files_.size());
    if (is_new) files_.emplace_back(fs::path(folder_) / file_name);
    if (!files_[file->second].find(tensor))
      throw InputError("{}: tensor {} is said to be in {}, but is not there", index_path, shown(tensor), file_name);
    home_[tensor] = file->second;
  }
}

void CheckpointReader::check(const ParameterTable& table) const {
  std::vector<const Parameter*> missing;
  for (const Parameter& parameter : table.parameters())
    if (!home_.contains(parameter.name)) missing.push_back(&parameter);
  if (!missing.empty()) {
    const std::string& first = missing[0]->name;
    const std::string others = missing.size() > 1 ? format(" (and {} more)", missing.size() - 1) : "";
    throw InputError("{}: parameter \"{}\" is missing{}{}", folder_, first, others,
                     first == kHead ? "; expected it, as config.json does not set tie_word_embeddings" : "");
  }
  for (const Parameter& parameter : table.parameters()) {
    const std::string& file = file_of(parameter.name).path();
    const TensorData data = tensor(parameter.name);
    if (const auto expected = sizes_of(parameter.shape); data.shape != expected)
      throw InputError("{}: tensor \"{}\" has shape {}, expected {} by config.json", file, parameter.name,
                       shown(data.shape), shown(expected));
    if (!is_readable(data.dtype))
      throw InputError("{}: tensor \"{}\" is {}, expected F32, BF16, F16 or F64", file, parameter.name,
                       name_of(data.dtype));
  }
  std::set<std::string_view> known;
  for (const Parameter& parameter : table.parameters()) known.insert(parameter.name);
  for (const auto& [name, file] : home_) {
    if (known.contains(name) || is_redundant(name)) continue;
    if (name == kHead && config_.tied) {
      check_tied_head();
    } else {
      throw InputError("{}: tensor {} is no parameter of the model that config.json describes", files_[file].path(),
                       shown(name));
    }
  }
}

// Some writers save the head of a tied model as well. That is harmless as long as it is the embedding.
void CheckpointReader::check_tied_head() const {
  const TensorData head = tensor(kHead), embedding = tensor(kEmbedding);
  const bool same = head.dtype == embedding.dtype && head.shape == embedding.shape &&
                    std::memcmp(head.bytes.data(), embedding.bytes.data(), head.bytes.size()) == 0;
  if (!same)
    throw InputError("{}: tensor \"{}\" differs from \"{}\", expected the same as config.json sets tie_word_embeddings",
                     file_of(kHead).path(), kHead, kEmbedding);
}

CheckpointFormat CheckpointReader::save_format(const ParameterTable& table) const {
  CheckpointFormat format{.config = config_json_, .side_files = read_side_files(folder_)};
  for (const Parameter& parameter : table.parameters()) {
    const FileDType dtype = tensor(parameter.name).dtype;
    format.dtypes.push_back(dtype == FileDType::kF64 ? FileDType::kF32 : dtype);  // training is in fp32 at most
  }
  for (const char* key : {"dtype", "torch_dtype"})
    if (const auto found = format.config.find(key); found != format.config.end() && *found == "float64")
      *found = "float32";
  return format;
}

TensorData CheckpointReader::tensor(const std::string& name) const {
  CHECK(home_.contains(name), "{} has no tensor '{}'", folder_, name);
  return *file_of(name).find(name);
}

void CheckpointReader::read(const std::string& name, dim_t offset, dim_t n, float* values) const {
  const TensorData data = tensor(name);
  const auto element = static_cast<dim_t>(bits_of(data.dtype) / 8);
  const auto size = static_cast<dim_t>(data.bytes.size()) / element;
  CHECK(0 <= offset && 0 <= n && offset <= size && n <= size - offset, "tensor '{}': elements [{}, {} + {}) of {}",
        name, offset, offset, n, size);
  to_f32(data.bytes.data() + offset * element, data.dtype, static_cast<std::size_t>(n), values);
}

}  // namespace untied
