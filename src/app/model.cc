// `untied model`: the presets, the shapes and checks of a checkpoint, a checkpoint with random weights.
#include <algorithm>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "app/commands.h"
#include "base/error.h"
#include "base/format.h"
#include "io/checkpoint.h"
#include "io/file.h"
#include "io/hf_config.h"
#include "io/hub_cache.h"
#include "model/init.h"
#include "model/parameters.h"
#include "model/presets.h"

namespace untied {
namespace {

namespace fs = std::filesystem;

int list_presets() {
  const auto print_row = [](const auto&... cells) {
    fmt::print("{:16} {:>10} {:>7} {:>7} {:>6} {:>9} {:>6} {:>7} {:>8}\n", cells...);
  };
  print_row("preset", "parameters", "blocks", "hidden", "heads", "kv heads", "MLP", "vocab", "context");
  for (const std::string& name : preset_names()) {
    const ModelConfig m = find_preset(name).value();
    print_row(name, format_count(static_cast<double>(parameter_count(m))), m.blocks, m.hidden, m.heads, m.kv_heads,
              m.mlp, m.vocab, m.max_context);
  }
  return 0;
}

void print_shapes(const ModelConfig& m) {
  const auto print_row = [](const char* name, const std::string& value) { fmt::print("{:12}{}\n", name, value); };
  const bool llama3 = m.rope.type == RopeType::kLlama3;
  print_row("family", m.family);
  print_row("blocks", format("{}", m.blocks));
  print_row("hidden", format("{}", m.hidden));
  print_row("heads", format("{} query, {} key/value, of size {}", m.heads, m.kv_heads, m.head_dim));
  print_row("MLP", format("{}", m.mlp));
  print_row("vocabulary", format("{}{}", m.vocab, m.tied ? ", head tied to the embedding" : ""));
  if (m.attention_bias) print_row("biases", "attention");
  if (m.mlp_bias) print_row("biases", "MLP");
  print_row("rope", format("theta {}{}", m.rope.theta, llama3 ? format(", llama3 with factor {}", m.rope.factor) : ""));
  print_row("context", m.max_context ? format_tokens(m.max_context) : "not said");
  print_row("dtype", name_of(m.dtype));
}

// Parameters by kind of unit, summed over blocks.
void print_totals(const ParameterTable& table) {
  static constexpr const char* kKinds[] = {"embedding", "attention", "MLP", "final norm", "head"};
  std::map<UnitKind, dim_t> elements;
  dim_t total = 0;
  for (const Parameter& parameter : table.parameters()) {
    elements[table.units()[parameter.unit].kind] += parameter.shape.size();
    total += parameter.shape.size();
  }
  fmt::print("\nparameters\n");
  for (const auto& [kind, n] : elements) fmt::print("{:12}{:>20}\n", kKinds[static_cast<int>(kind)], n);
  fmt::print("{:12}{:>20}  in {} tensors; {} in bf16, {} in fp32\n", "total", total, table.parameters().size(),
             format_bytes(2.0 * static_cast<double>(total)), format_bytes(4.0 * static_cast<double>(total)));
}

int inspect_model(const std::string& model) {
  const ModelConfig config = load_model_config(model);
  print_shapes(config);
  const ModelParameters table(config);
  print_totals(table);
  if (const auto checkpoint = open_checkpoint(model)) {
    checkpoint->check(table);
    fmt::print("\n{}: every tensor is there, in its shape\n", checkpoint->folder());
  }
  return 0;
}

int init_model(const RunConfig& run) {
  ModelConfig config = load_model_config(run.model);
  config.dtype = run.dtype.value_or(config.dtype);
  const ModelParameters table(config);
  CheckpointWriter writer(run.out, table, new_checkpoint_format(config, table));
  std::vector<float> piece(std::size_t{1} << 20);
  for (const Parameter& parameter : table.parameters()) {
    for (dim_t begin = 0; begin < parameter.shape.size(); begin += static_cast<dim_t>(piece.size())) {
      const Range elements = intersect({begin, begin + static_cast<dim_t>(piece.size())}, {0, parameter.shape.size()});
      init_parameter(parameter, config.init_std, run.seed, elements, piece.data());
      writer.write(parameter.name, elements.begin, elements.size(), piece.data());
    }
  }
  writer.finish();
  fmt::print("{}: {} parameters in {}, seed {}\n", run.out, parameter_count(config), name_of(config.dtype), run.seed);
  return 0;
}

}  // namespace

std::string model_folder(const std::string& model) {
  std::error_code error;
  if (fs::is_directory(model, error)) return model;
  if (model.empty() || fs::exists(model, error) || find_preset(model)) return "";
  if (is_hub_name(model)) return find_in_hub_cache(model);
  throw InputError("--model {}: no such folder, and no preset; the nearest preset is {}", model,
                   nearest(model, preset_names()));
}

ModelConfig load_model_config(const std::string& model) {
  if (model.empty()) throw ConfigError("--model is missing");
  if (const std::string folder = model_folder(model); !folder.empty()) return load_hf_config(folder);
  std::error_code error;
  if (!fs::exists(model, error)) return find_preset(model).value();
  const MappedFile file(model);
  return read_hf_config(parse_json(file.text(), model), model);
}

std::shared_ptr<const CheckpointReader> open_checkpoint(const std::string& model) {
  const std::string folder = model_folder(model);
  return folder.empty() ? nullptr : std::make_shared<const CheckpointReader>(CheckpointReader::open(folder));
}

int run_model(const Invocation& invocation) {
  if (invocation.action == "list") return list_presets();
  if (invocation.action == "inspect") return inspect_model(invocation.run.model);
  return init_model(invocation.run);
}

}  // namespace untied
