// Checkpoints as Hugging Face lays them out: config.json, one or several safetensors files, the tokenizer's files beside.
// A model that was read, trained and written again can take the place of the original: same element types, same
// config, same side files.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "io/json.h"
#include "io/safetensors.h"
#include "model/config.h"
#include "model/parameters.h"

namespace untied {

// What all checkpoints of a run have in common. It is complete in itself: the folder that a model came from may be gone
// by the time it is saved.
struct CheckpointFormat {
  Json config;                                    // becomes config.json
  std::vector<FileDType> dtypes;                  // of each parameter of the table
  std::map<std::string, std::string> side_files;  // name and content: tokenizer, chat template, licence
  std::uint64_t max_file_bytes = 5'000'000'000;   // of tensors; a larger model is split over several files
};

// For a model that was made here: all parameters in config.dtype, double precision in single.
CheckpointFormat new_checkpoint_format(const ModelConfig& config, const ParameterTable& table);

class CheckpointReader {
 public:
  // A folder, or "org/name" in the local Hugging Face cache. Opens and checks all files that the index names; reads no
  // tensor. Throws InputError.
  static CheckpointReader open(const std::string& model);

  const std::string& folder() const { return folder_; }
  const ModelConfig& config() const { return config_; }

  // Throws InputError, naming file and tensor, unless the checkpoint has each parameter in its shape and a readable type,
  // and nothing else that would matter. Cheap: call it before any large allocation.
  void check(const ParameterTable& table) const;

  // The format in which the model should be saved again. After check().
  CheckpointFormat save_format(const ParameterTable& table) const;

  // Where a parameter lies in its file. Any thread, for as long as the reader lives.
  TensorData tensor(const std::string& name) const;

  // values[0..n) = the parameter's elements from `offset` on.
  void read(const std::string& name, dim_t offset, dim_t n, float* values) const;

 private:
  CheckpointReader() = default;
  void open_indexed(const std::string& index_path);
  void check_tied_head() const;
  const SafetensorsFile& file_of(const std::string& name) const { return files_[home_.at(name)]; }

  std::string folder_;
  Json config_json_;
  ModelConfig config_;
  std::vector<SafetensorsFile> files_;
  std::map<std::string, std::size_t> home_;  // of every tensor, an index into files_
};

// Writes into a temporary folder beside `folder`, which appears under its name only when it is complete and on the disk.
class CheckpointWriter {
 public:
  // Throws ConfigError if `folder` exists and is not an empty folder, RunError if the disk has not the space.
  CheckpointWriter(const std::string& folder, const ParameterTable& table, const CheckpointFormat& format);

  // Without finish(), nothing remains.
  ~CheckpointWriter();

  // values[0..n) become the parameter's elements from `offset` on; each element exactly once, from any thread.
  void write(const std::string& name, dim_t offset, dim_t n, const float* values);

  // Throws InternalError if an element is missing.
  void finish();

 private:
  class TemporaryFolder;

  std::unique_ptr<TemporaryFolder> temporary_;
  std::deque<SafetensorsWriter> files_;
  std::map<std::string, SafetensorsWriter*> home_;  // of every parameter
};

}  // namespace untied
