#include "io/hf_config.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <limits>
#include <optional>
#include <utility>

#include "base/error.h"
#include "io/file.h"

namespace untied {
namespace {

// The typed fields of one object of the file. Absent and null are the same thing, as in transformers.
class Fields {
 public:
  // `path` names the object inside the file: "" or "rope_scaling.".
  Fields(const Json& object, const std::string& where, std::string path = "")
      : object_(object), where_(where), path_(std::move(path)) {
    if (!object.is_object()) throw InputError("{}: {}{}, expected an object", where, path_, shown(object));
  }

  const Json* find(const char* name) const {
    const auto found = object_.find(name);
    return found == object_.end() || found->is_null() ? nullptr : &*found;
  }
  bool has(const char* name) const { return find(name) != nullptr; }

  dim_t integer(const char* name, dim_t otherwise) const {
    const Json* value = find(name);
    if (!value) return otherwise;
    constexpr auto kMax = static_cast<std::uint64_t>(std::numeric_limits<dim_t>::max());
    if (!value->is_number_integer() || (value->is_number_unsigned() && value->get<std::uint64_t>() > kMax))
      fail(name, "a whole number");
    return value->get<dim_t>();
  }

  double number(const char* name, double otherwise) const {
    const Json* value = find(name);
    if (!value) return otherwise;
    if (!value->is_number()) fail(name, "a number");  // 500000 as good as 500000.0
    return value->get<double>();
  }

  double number(const char* name) const {
    if (!has(name)) throw InputError("{}: {}{} is missing, expected a number", where_, path_, name);
    return number(name, 0);
  }

  bool boolean(const char* name, bool otherwise) const {
    const Json* value = find(name);
    if (!value) return otherwise;
    if (!value->is_boolean()) fail(name, "true or false");
    return value->get<bool>();
  }

  std::string string(const char* name, const std::string& otherwise) const {
    const Json* value = find(name);
    if (!value) return otherwise;
    if (!value->is_string()) fail(name, "a string");
    return value->get<std::string>();
  }

  // The field as an object of its own, nullopt when absent or empty.
  std::optional<Fields> object(const char* name) const {
    const Json* value = find(name);
    if (!value) return std::nullopt;
    if (!value->is_object()) fail(name, "an object");
    if (value->empty()) return std::nullopt;
    return Fields(*value, where_, path_ + name + ".");
  }

  const Json& json() const { return object_; }

  [[noreturn]] void fail(const char* name, const std::string& expected) const {
    throw InputError("{}: {}{} is {}, expected {}", where_, path_, name, shown(object_[name]), expected);
  }

 private:
  const Json& object_;
  const std::string& where_;
  std::string path_;
};

// Models that compute something else than this engine does. Each would load, and train wrongly.
void refuse_unsupported(const Fields& top, const std::string& where) {
  struct Feature {
    const char* field;
    const char* what;
  };
  static constexpr Feature kRefused[] = {
      {"quantization_config", "quantized checkpoints are not supported; use the unquantized one"},
      {"text_config", "multimodal models are not supported"},
      {"vision_config", "multimodal models are not supported"},
      {"auto_map", "models with code of their own are not supported"},
      {"num_experts", "mixtures of experts are not supported"},
      {"num_local_experts", "mixtures of experts are not supported"},
      {"n_routed_experts", "mixtures of experts are not supported"},
      {"num_experts_per_tok", "mixtures of experts are not supported"},
  };
  for (const Feature& feature : kRefused)
    if (const Json* value = top.find(feature.field); value && !value->empty())
      throw InputError("{}: has {}: {}", where, feature.field, feature.what);

  if (!top.has("model_type")) throw InputError("{}: model_type is missing, expected \"llama\"", where);
  if (top.string("model_type", "") != "llama") top.fail("model_type", "\"llama\", the only family supported so far");
  if (const Json* names = top.find("architectures"); names && !names->empty()) {
    if (!names->is_array()) top.fail("architectures", "a list of names");
    if (std::find(names->begin(), names->end(), "LlamaForCausalLM") == names->end())
      top.fail("architectures", "[\"LlamaForCausalLM\"]");
  }
  if (top.string("hidden_act", "silu") != "silu") top.fail("hidden_act", "\"silu\", the only one supported");
  if (top.integer("pretraining_tp", 1) != 1) top.fail("pretraining_tp", "1, the only value supported");
  if (top.number("attention_dropout", 0) != 0) top.fail("attention_dropout", "0: dropout is not supported");
  if (top.number("partial_rotary_factor", 1) != 1) top.fail("partial_rotary_factor", "1, the only value supported");
}

// transformers 5 takes rope_scaling when there is one, else rope_parameters; what the object does not say is looked up at
// the top level, then defaults.
RopeConfig read_rope(const Fields& top, dim_t max_context) {
  RopeConfig rope;
  rope.theta = top.number("rope_theta", rope.theta);
  const bool has_scaling = top.object("rope_scaling").has_value();
  const std::optional<Fields> scaling = top.object(has_scaling ? "rope_scaling" : "rope_parameters");
  if (!scaling) return rope;

  for (const auto& [name, value] : scaling->json().items())
    if (value.is_object()) scaling->fail(name.c_str(), "no parameters per layer type: they are not supported");
  rope.theta = scaling->number("rope_theta", rope.theta);
  if (scaling->number("partial_rotary_factor", 1) != 1)
    scaling->fail("partial_rotary_factor", "1, the only value supported");

  const char* type_field = scaling->has("rope_type") ? "rope_type" : "type";  // the older name
  const std::string type = scaling->string(type_field, "default");
  if (type == "default") return rope;
  for (const char* later : {"linear", "dynamic", "yarn", "longrope"})
    if (type == later) scaling->fail(type_field, "\"default\" or \"llama3\": this one is not supported yet");
  if (type != "llama3") scaling->fail(type_field, "\"default\" or \"llama3\"");
  rope.type = RopeType::kLlama3;
  rope.factor = scaling->number("factor");
  rope.low_freq_factor = scaling->number("low_freq_factor");
  rope.high_freq_factor = scaling->number("high_freq_factor");
  rope.original_context = scaling->integer("original_max_position_embeddings", max_context);
  return rope;
}

constexpr std::array<std::pair<const char*, DType>, 4> kDTypes{
    {{"float32", DType::kF32}, {"bfloat16", DType::kBF16}, {"float16", DType::kF16}, {"float64", DType::kF64}}};

DType read_dtype(const Fields& top) {
  const char* field = top.has("dtype") ? "dtype" : "torch_dtype";  // the older name
  const std::string name = top.string(field, "float32");
  for (const auto& [spelling, dtype] : kDTypes)
    if (name == spelling) return dtype;
  top.fail(field, "\"float32\", \"bfloat16\", \"float16\" or \"float64\"");
}

const char* hf_name(DType wanted) {
  for (const auto& [spelling, dtype] : kDTypes)
    if (dtype == wanted) return spelling;
  throw InternalError("{} is no type of a checkpoint", name_of(wanted));
}

}  // namespace

ModelConfig read_hf_config(const Json& json, const std::string& where) {
  const Fields top(json, where);
  refuse_unsupported(top, where);

  // What a file leaves out has the default of transformers' LlamaConfig.
  ModelConfig config;
  config.family = "llama";
  config.hidden = top.integer("hidden_size", 4096);
  config.blocks = top.integer("num_hidden_layers", 32);
  config.heads = top.integer("num_attention_heads", 32);
  config.kv_heads = top.integer("num_key_value_heads", config.heads);
  config.mlp = top.integer("intermediate_size", 11008);
  config.vocab = top.integer("vocab_size", 32000);
  config.norm_eps = top.number("rms_norm_eps", 1e-6);
  config.init_std = top.number("initializer_range", 0.02);
  config.tied = top.boolean("tie_word_embeddings", false);
  config.attention_bias = top.boolean("attention_bias", false);
  config.mlp_bias = top.boolean("mlp_bias", false);
  config.max_context = top.integer("max_position_embeddings", 2048);
  config.rope = read_rope(top, config.max_context);
  config.dtype = read_dtype(top);
  if (top.has("head_dim")) {
    config.head_dim = top.integer("head_dim", 0);
  } else {
    if (config.heads < 1 || config.hidden % config.heads != 0)
      throw InputError("{}: hidden_size is {}, expected a multiple of num_attention_heads, which is {}, or a head_dim",
                       where, config.hidden, config.heads);
    config.head_dim = config.hidden / config.heads;
  }
  validate(config, where);
  return config;
}

ModelConfig load_hf_config(const std::string& folder) {
  const MappedFile file(std::filesystem::path(folder) / "config.json");
  return read_hf_config(parse_json(file.text(), file.path()), file.path());
}

Json hf_config_json(const ModelConfig& config) {
  CHECK(config.family == "llama", "no config.json for the family '{}' yet", config.family);
  Json scaling = nullptr;
  if (config.rope.type == RopeType::kLlama3) {
    scaling = {{"factor", config.rope.factor},
               {"high_freq_factor", config.rope.high_freq_factor},
               {"low_freq_factor", config.rope.low_freq_factor},
               {"original_max_position_embeddings", config.rope.original_context},
               {"rope_type", "llama3"}};
  }
  Json rope = scaling.is_null() ? Json::object({{"rope_type", "default"}}) : scaling;
  rope["rope_theta"] = config.rope.theta;

  Json json;
  json["architectures"] = Json::array({"LlamaForCausalLM"});
  json["attention_bias"] = config.attention_bias;
  json["attention_dropout"] = 0.0;
  json["bos_token_id"] = nullptr;  // the defaults, 1 and 2, are ordinary tokens of a byte vocabulary
  json["dtype"] = hf_name(config.dtype);
  json["eos_token_id"] = nullptr;
  json["head_dim"] = config.head_dim;
  json["hidden_act"] = "silu";
  json["hidden_size"] = config.hidden;
  json["initializer_range"] = config.init_std;
  json["intermediate_size"] = config.mlp;
  if (config.max_context > 0) json["max_position_embeddings"] = config.max_context;
  json["mlp_bias"] = config.mlp_bias;
  json["model_type"] = "llama";
  json["num_attention_heads"] = config.heads;
  json["num_hidden_layers"] = config.blocks;
  json["num_key_value_heads"] = config.kv_heads;
  json["rms_norm_eps"] = config.norm_eps;
  json["rope_parameters"] = rope;  // transformers 5
  json["rope_scaling"] = scaling;  // transformers 4, with rope_theta
  json["rope_theta"] = config.rope.theta;
  json["tie_word_embeddings"] = config.tied;
  json["torch_dtype"] = hf_name(config.dtype);  // the name before transformers 4.56
  json["vocab_size"] = config.vocab;
  return json;
}

}  // namespace untied
