#include "io/hf_config.h"

#include "files.h"

namespace untied {
namespace {

// A complete config in the layout of transformers 5, changed by a JSON merge patch: null removes a key.
Json config_with(const std::string& patch) {
  Json json = Json::parse(R"({
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "attention_bias": false, "attention_dropout": 0.0,
    "bos_token_id": 1, "eos_token_id": 2, "dtype": "bfloat16", "head_dim": 8, "hidden_act": "silu", "hidden_size": 32,
    "initializer_range": 0.01, "intermediate_size": 80, "max_position_embeddings": 128, "mlp_bias": false,
    "num_attention_heads": 4, "num_hidden_layers": 2, "num_key_value_heads": 2, "pad_token_id": 0, "pretraining_tp": 1,
    "rms_norm_eps": 1e-05, "rope_parameters": {"rope_theta": 20000.0, "rope_type": "default"},
    "tie_word_embeddings": false, "transformers_version": "5.24.0", "use_cache": true, "vocab_size": 96})");
  json.merge_patch(Json::parse(patch));
  return json;
}

ModelConfig read(const Json& json) { return read_hf_config(json, "f"); }
ModelConfig read_with(const std::string& patch) { return read(config_with(patch)); }
std::string error_with(const std::string& patch) {
  return message_of([&] { read_with(patch); });
}

// Every field, as text: two configs are equal when their texts are.
std::string str(const ModelConfig& c) {
  return format("{} E{} L{} H{} K{} D{} F{} V{} eps {} std {} tied {} bias {} {} context {} rope {} {} {} {} {} {} {}",
                c.family, c.hidden, c.blocks, c.heads, c.kv_heads, c.head_dim, c.mlp, c.vocab, c.norm_eps, c.init_std,
                c.tied, c.attention_bias, c.mlp_bias, c.max_context, static_cast<int>(c.rope.type), c.rope.theta,
                c.rope.factor, c.rope.low_freq_factor, c.rope.high_freq_factor, c.rope.original_context,
                name_of(c.dtype));
}

TEST(HfConfig, ReadsEveryField) {
  EXPECT_EQ(str(read_with("{}")),
            "llama E32 L2 H4 K2 D8 F80 V96 eps 1e-05 std 0.01 tied false bias false false context 128 "
            "rope 0 20000 1 1 4 8192 bf16");
  EXPECT_EQ(str(read_with(R"({"attention_bias": true, "mlp_bias": true, "tie_word_embeddings": true, "head_dim": 16,
                              "dtype": "float16", "num_key_value_heads": 1})")),
            "llama E32 L2 H4 K1 D16 F80 V96 eps 1e-05 std 0.01 tied true bias true true context 128 "
            "rope 0 20000 1 1 4 8192 fp16");
}

TEST(HfConfig, AbsentOrNullMeansTheDefault) {
  EXPECT_EQ(str(read(Json::parse(R"({"model_type": "llama"})"))),
            "llama E4096 L32 H32 K32 D128 F11008 V32000 eps 1e-06 std 0.02 tied false bias false false context 2048 "
            "rope 0 10000 1 1 4 8192 fp32");
  const Json all_null = Json::parse(R"({"model_type": "llama", "hidden_size": null, "num_key_value_heads": null,
      "head_dim": null, "rope_theta": null, "rope_scaling": null, "rope_parameters": null, "dtype": null,
      "torch_dtype": null, "quantization_config": null, "pretraining_tp": null, "attention_dropout": null,
      "attention_bias": null, "eos_token_id": null, "architectures": null, "num_experts": null, "auto_map": {}})");
  EXPECT_EQ(str(read(all_null)), str(read(Json::parse(R"({"model_type": "llama"})"))));
  EXPECT_EQ(read_with(R"({"head_dim": null})").head_dim, 8);
  EXPECT_EQ(read_with(R"({"num_key_value_heads": null})").kv_heads, 4);
}

TEST(HfConfig, UnusedFieldsMayBeAnything) {
  for (const char* patch : {R"({"eos_token_id": [128001, 128008, 128009]})", R"({"pad_token_id": -1})",
                            R"({"sliding_window": 4096})", R"({"something_new": {"a": [1]}})"})
    EXPECT_EQ(str(read_with(patch)), str(read_with("{}"))) << patch;
}

TEST(HfConfig, RopeInBothLayouts) {
  const std::string llama3 = R"("rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0)";
  struct Row {
    std::string fields;
    const char* rope;  // type, theta, factor, low, high, original context
  };
  const Row rows[] = {
      // transformers 5
      {R"("rope_parameters": {"rope_type": "default", "rope_theta": 5e5})", "0 500000 1 1 4 8192"},
      {R"("rope_parameters": {"rope_theta": 5e5, "original_max_position_embeddings": 40, )" + llama3 + "}",
       "1 500000 8 1 4 40"},
      {R"("rope_parameters": {)" + llama3 + "}", "1 10000 8 1 4 128"},
      // transformers 4
      {R"("rope_theta": 1e3)", "0 1000 1 1 4 8192"},
      {R"("rope_theta": 1e3, "rope_scaling": null)", "0 1000 1 1 4 8192"},
      {R"("rope_theta": 5e5, "rope_scaling": {"original_max_position_embeddings": 64, )" + llama3 + "}",
       "1 500000 8 1 4 64"},
      {R"("rope_scaling": {"type": "llama3", "factor": 2.5, "low_freq_factor": 1.0, "high_freq_factor": 4.0})",
       "1 10000 2.5 1 4 128"},
      {R"("rope_scaling": {"type": "linear", "rope_type": "default"})", "0 10000 1 1 4 8192"},
      // whole numbers where fractions are expected
      {R"("rope_theta": 1000, "rope_scaling": {"rope_type": "llama3", "factor": 8, "low_freq_factor": 1,
          "high_freq_factor": 4})",
       "1 1000 8 1 4 128"},
      // both layouts at once: rope_scaling wins unless it is empty; theta is its own, then the top level's
      {R"("rope_theta": 7, "rope_scaling": {)" + llama3 + R"(}, "rope_parameters": {"rope_theta": 8})",
       "1 7 8 1 4 128"},
      {R"("rope_theta": 7, "rope_scaling": {"rope_type": "default", "rope_theta": 8})", "0 8 1 1 4 8192"},
      {R"("rope_theta": 7, "rope_scaling": {}, "rope_parameters": {"rope_theta": 8})", "0 8 1 1 4 8192"},
      {R"("rope_theta": 7, "rope_parameters": {"rope_type": "default", "rope_theta": null})", "0 7 1 1 4 8192"},
  };
  for (const Row& row : rows) {
    Json json = config_with(R"({"rope_parameters": null})");
    json.update(Json::parse("{" + row.fields + "}"));
    const RopeConfig rope = read(json).rope;
    EXPECT_EQ(format("{} {} {} {} {} {}", static_cast<int>(rope.type), rope.theta, rope.factor, rope.low_freq_factor,
                     rope.high_freq_factor, rope.original_context),
              row.rope)
        << row.fields;
  }
}

TEST(HfConfig, DTypeByEitherName) {
  EXPECT_EQ(read_with(R"({"dtype": null, "torch_dtype": "float16"})").dtype, DType::kF16);
  EXPECT_EQ(read_with(R"({"dtype": "float32", "torch_dtype": "float16"})").dtype, DType::kF32);
  EXPECT_EQ(read_with(R"({"dtype": "float64"})").dtype, DType::kF64);
}

TEST(HfConfig, RefusesByName) {
  const std::pair<const char*, const char*> rows[] = {
      // other models
      {R"({"model_type": "qwen3"})",
       "f: model_type is \"qwen3\", expected \"llama\", the only family supported so far"},
      {R"({"model_type": null})", "model_type is missing, expected \"llama\""},
      {R"({"model_type": 3})", "model_type is 3, expected a string"},
      {R"({"architectures": ["LlamaForSequenceClassification"]})",
       "architectures is [\"LlamaForSequenceClassification\"], expected [\"LlamaForCausalLM\"]"},
      {R"({"quantization_config": {"bits": 4}})", "has quantization_config: quantized checkpoints are not supported"},
      {R"({"text_config": {"hidden_size": 1}})", "has text_config: multimodal"},
      {R"({"vision_config": {"hidden_size": 1}})", "has vision_config: multimodal"},
      {R"({"auto_map": {"AutoModel": "m.M"}})", "has auto_map: models with code of their own"},
      {R"({"num_local_experts": 8})", "has num_local_experts: mixtures of experts"},
      {R"({"num_experts": 8})", "has num_experts: mixtures of experts"},
      // features
      {R"({"hidden_act": "gelu"})", "hidden_act is \"gelu\", expected \"silu\""},
      {R"({"pretraining_tp": 2})", "pretraining_tp is 2, expected 1"},
      {R"({"attention_dropout": 0.1})", "attention_dropout is 0.1, expected 0"},
      {R"({"partial_rotary_factor": 0.5})", "partial_rotary_factor is 0.5, expected 1"},
      {R"({"rope_parameters": {"partial_rotary_factor": 0.5}})",
       "rope_parameters.partial_rotary_factor is 0.5, expected 1"},
      {R"({"rope_parameters": {"rope_type": "yarn"}})",
       "rope_parameters.rope_type is \"yarn\", expected \"default\" or \"llama3\": this one is not supported yet"},
      {R"({"rope_scaling": {"type": "linear", "factor": 2}})", "rope_scaling.type is \"linear\", expected"},
      {R"({"rope_scaling": {"rope_type": "dynamic"}})", "not supported yet"},
      {R"({"rope_scaling": {"rope_type": "longrope"}})", "not supported yet"},
      {R"({"rope_scaling": {"rope_type": "su"}})",
       "rope_scaling.rope_type is \"su\", expected \"default\" or \"llama3\""},
      {R"({"rope_parameters": {"full_attention": {"rope_theta": 1}}})",
       "rope_parameters.full_attention is {\"rope_theta\":1}, expected no"},
      {R"({"rope_scaling": {"rope_type": "llama3", "factor": 8}})", "rope_scaling.low_freq_factor is missing"},
      {R"({"rope_scaling": {"rope_type": "llama3", "factor": 8, "low_freq_factor": 4, "high_freq_factor": 4}})",
       "high_freq_factor is 4, expected more than low_freq_factor, which is 4"},
      // types
      {R"({"hidden_size": "32"})", "f: hidden_size is \"32\", expected a whole number"},
      {R"({"hidden_size": 32.0})", "hidden_size is 32.0, expected a whole number"},
      {R"({"vocab_size": 18446744073709551615})", "vocab_size is 18446744073709551615, expected a whole number"},
      {R"({"rms_norm_eps": true})", "rms_norm_eps is true, expected a number"},
      {R"({"tie_word_embeddings": 1})", "tie_word_embeddings is 1, expected true or false"},
      {R"({"rope_scaling": "linear"})", "rope_scaling is \"linear\", expected an object"},
      {R"({"rope_parameters": {"rope_theta": "1e6"}})", "rope_parameters.rope_theta is \"1e6\", expected a number"},
      {R"({"dtype": "int8"})", "dtype is \"int8\", expected \"float32\", \"bfloat16\""},
      {R"({"dtype": null, "torch_dtype": "auto"})", "torch_dtype is \"auto\", expected"},
      // sizes
      {R"({"hidden_size": 0})", "hidden_size is 0, expected 1 to"},
      {R"({"head_dim": null, "hidden_size": 33})",
       "hidden_size is 33, expected a multiple of num_attention_heads, which is 4"},
      {R"({"head_dim": null, "num_attention_heads": 0})", "num_attention_heads, which is 0"},
      {R"({"num_key_value_heads": 3})",
       "num_key_value_heads is 3, expected a divisor of num_attention_heads, which is 4"},
      {R"({"max_position_embeddings": -1})", "max_position_embeddings is -1"},
  };
  for (const auto& [patch, expected] : rows) EXPECT_TRUE(contains(error_with(patch), expected)) << patch;
  EXPECT_EQ(message_of([] { read(Json::parse("[1]")); }), "f: [1], expected an object");
}

TEST(HfConfig, WritesWhatItReads) {
  ModelConfig config = read_with("{}");
  EXPECT_EQ(str(read(hf_config_json(config))), str(config));
  config.tied = config.attention_bias = config.mlp_bias = true;
  config.head_dim = 32;
  config.dtype = DType::kF32;
  config.rope = {RopeType::kLlama3, 500000, 32, 1, 4, 8192};
  const Json json = hf_config_json(config);
  EXPECT_EQ(str(read(json)), str(config));

  Json old_layout = json, new_layout = json;  // each is complete without the other's keys
  for (const char* key : {"rope_parameters", "dtype"}) old_layout.erase(key);
  for (const char* key : {"rope_scaling", "rope_theta", "torch_dtype"}) new_layout.erase(key);
  EXPECT_EQ(str(read(old_layout)), str(config));
  EXPECT_EQ(str(read(new_layout)), str(config));
}

TEST(HfConfig, LoadsTheFileOfAFolder) {
  const TemporaryFolder folder;
  EXPECT_EQ(message_of([&] { load_hf_config(folder.path()); }), folder / "config.json" + ": no such file");
  write_text(folder / "config.json", config_with("{}").dump());
  EXPECT_EQ(load_hf_config(folder.path()).hidden, 32);
  write_text(folder / "config.json", R"({"model_type": "llama", "hidden_size": 8, "hidden_size": 16})");
  EXPECT_TRUE(contains(message_of([&] { load_hf_config(folder.path()); }), "config.json: not valid JSON"));
}

}  // namespace
}  // namespace untied
