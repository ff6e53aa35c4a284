#include "io/checkpoint.h"

#include <sys/resource.h>

#include <csignal>
#include <cstring>
#include <thread>

#include "files.h"
#include "io/hf_config.h"

namespace untied {
namespace {

namespace fs = std::filesystem;

ModelConfig small_config(bool tied = false) {
  ModelConfig config;
  config.hidden = 8;
  config.blocks = 2;
  config.heads = 2;
  config.kv_heads = 1;
  config.head_dim = 4;
  config.mlp = 12;
  config.vocab = 20;
  config.tied = tied;
  config.max_context = 64;
  return config;
}

// Values that every type holds exactly, different in every parameter.
std::vector<float> values_of(const ParameterTable& table, int index) {
  std::vector<float> values(static_cast<std::size_t>(table.parameters()[index].shape.size()));
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>((i + 31 * index) % 113) / 8 - 7;
  return values;
}

void write_all_parameters(CheckpointWriter& writer, const ParameterTable& table) {
  for (std::size_t i = 0; i < table.parameters().size(); ++i) {
    const std::vector<float> values = values_of(table, static_cast<int>(i));
    writer.write(table.parameters()[i].name, 0, static_cast<dim_t>(values.size()), values.data());
  }
}

void write_checkpoint(const std::string& folder, const ParameterTable& table, const CheckpointFormat& format) {
  CheckpointWriter writer(folder, table, format);
  write_all_parameters(writer, table);
  writer.finish();
}

void write_small_checkpoint(const std::string& folder, bool tied = false,
                            std::uint64_t max_file_bytes = 5'000'000'000) {
  const ModelConfig config = small_config(tied);
  const ModelParameters table(config);
  CheckpointFormat format = new_checkpoint_format(config, table);
  format.max_file_bytes = max_file_bytes;
  write_checkpoint(folder, table, format);
}

// The message of opening and checking the folder against its own config.
std::string error_in(const std::string& folder) {
  return message_of([&] {
    const CheckpointReader reader = CheckpointReader::open(folder);
    reader.check(ModelParameters(reader.config()));
  });
}

void expect_values(const CheckpointReader& reader, const ParameterTable& table) {
  for (std::size_t i = 0; i < table.parameters().size(); ++i) {
    std::vector<float> expected = values_of(table, static_cast<int>(i)), read(expected.size());
    reader.read(table.parameters()[i].name, 0, static_cast<dim_t>(read.size()), read.data());
    EXPECT_EQ(read, expected) << table.parameters()[i].name;
  }
}

// Reads a checkpoint and writes it again without change, as training for no step would.
void resave(const std::string& from, const std::string& to, std::uint64_t max_file_bytes) {
  const CheckpointReader reader = CheckpointReader::open(from);
  const ModelParameters table(reader.config());
  reader.check(table);
  CheckpointFormat format = reader.save_format(table);
  format.max_file_bytes = max_file_bytes;
  CheckpointWriter writer(to, table, format);
  for (const Parameter& parameter : table.parameters()) {
    std::vector<float> values(static_cast<std::size_t>(parameter.shape.size()));
    reader.read(parameter.name, 0, parameter.shape.size(), values.data());
    writer.write(parameter.name, 0, parameter.shape.size(), values.data());
  }
  writer.finish();
}

// ------------------------------------------------------------------------------------------------ write and read again

TEST(Checkpoint, RoundTripsInEveryTypeAndInOneOrManyFiles) {
  const TemporaryFolder folder;
  for (DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    for (std::uint64_t max_file_bytes : {std::uint64_t{1}, std::uint64_t{700}, std::uint64_t{1} << 40}) {
      const std::string path = folder / format("{}-{}", name_of(dtype), max_file_bytes);
      SCOPED_TRACE(path);
      ModelConfig config = small_config();
      config.dtype = dtype;
      const ModelParameters table(config);
      CheckpointFormat format = new_checkpoint_format(config, table);
      format.max_file_bytes = max_file_bytes;
      format.side_files["tokenizer.json"] = "{ }\n";
      write_checkpoint(path, table, format);

      const CheckpointReader reader = CheckpointReader::open(path);
      reader.check(table);
      expect_values(reader, table);
      EXPECT_EQ(reader.config().dtype, dtype);
      EXPECT_EQ(reader.save_format(table).dtypes, format.dtypes);
      EXPECT_EQ(reader.save_format(table).config, format.config);
      EXPECT_EQ(reader.save_format(table).side_files, format.side_files);
      EXPECT_EQ(fs::exists(path + "/model.safetensors"), max_file_bytes > 700);
    }
  }
}

TEST(Checkpoint, ReadsAndWritesSlices) {
  const TemporaryFolder folder;
  const ModelParameters table(small_config());
  {
    CheckpointWriter writer(folder / "a", table, new_checkpoint_format(small_config(), table));
    std::vector<std::thread> ranks;
    for (dim_t rank = 0; rank < 3; ++rank) {
      ranks.emplace_back([&, rank] {
        for (std::size_t i = 0; i < table.parameters().size(); ++i) {
          const std::vector<float> values = values_of(table, static_cast<int>(i));
          const dim_t size = static_cast<dim_t>(values.size()), begin = size * rank / 3, end = size * (rank + 1) / 3;
          writer.write(table.parameters()[i].name, begin, end - begin, values.data() + begin);
        }
      });
    }
    for (std::thread& rank : ranks) rank.join();
    writer.finish();
  }
  const CheckpointReader reader = CheckpointReader::open(folder / "a");
  expect_values(reader, table);
  const std::vector<float> all = values_of(table, 0);
  float three[3];
  reader.read("model.embed_tokens.weight", 5, 3, three);
  EXPECT_EQ(std::vector<float>(three, three + 3), std::vector<float>(all.begin() + 5, all.begin() + 8));
  EXPECT_THROW(reader.read("model.embed_tokens.weight", 158, 3, three), InternalError);
  EXPECT_THROW(reader.read("model.embed_tokens.weight", -1, 3, three), InternalError);
  EXPECT_THROW(reader.tensor("x"), InternalError);
}

TEST(Checkpoint, SplitsIntoNumberedFilesWithAnIndex) {
  const TemporaryFolder folder;
  write_small_checkpoint(folder / "a", false, 700);
  const Json index = parse_json(read_text(folder / "a/model.safetensors.index.json"), "index");
  const ModelParameters table(small_config());
  EXPECT_EQ(index["weight_map"].size(), table.parameters().size());
  EXPECT_EQ(index["metadata"]["total_parameters"], parameter_count(small_config()));
  EXPECT_EQ(index["metadata"]["total_size"], 4 * parameter_count(small_config()));
  const std::string last = index["weight_map"]["lm_head.weight"];
  const std::string count = last.substr(std::string("model-00001-of-").size(), 5);
  EXPECT_EQ(last, "model-" + count + "-of-" + count + ".safetensors");
  EXPECT_EQ(index["weight_map"]["model.embed_tokens.weight"], "model-00001-of-" + count + ".safetensors");
  EXPECT_EQ(names_in(folder / "a").size(), 2u + std::stoul(count));
  for (std::size_t file = 1; file <= std::stoul(count); ++file) {  // none above the limit
    const SafetensorsFile shard(folder / format("a/model-{:05}-of-{}.safetensors", file, count));
    std::uint64_t bytes = 0;
    for (const SafetensorsEntry& entry : shard.tensors()) bytes += entry.end - entry.begin;
    EXPECT_TRUE(bytes <= 700 || shard.tensors().size() == 1);
  }
}

TEST(Checkpoint, KeepsMixedTypesConfigAndSideFiles) {
  const TemporaryFolder folder;
  ModelConfig config = small_config();
  config.dtype = DType::kBF16;
  const ModelParameters table(config);
  CheckpointFormat format = new_checkpoint_format(config, table);
  for (std::size_t i = 0; i < format.dtypes.size(); ++i)
    if (table.parameters()[i].shape.rank() == 1) format.dtypes[i] = FileDType::kF32;  // norms
  format.config["eos_token_id"] = {128001, 128009};
  format.config["zzz_unknown"] = {{"a", 1e-05}, {"b", "\xc3\xa9"}};
  write_checkpoint(folder / "a", table, format);
  for (const char* name : {"tokenizer.json", "merges.txt", "LICENSE.txt", "USE_POLICY.md", "chat_template.jinja"})
    write_text(folder / "a/" + name, std::string(name) + "\r\n\n");
  write_text(folder / "a/added_tokens.json", "");
  write_text(folder / "a/optimizer.pt", "not a side file");
  resave(folder / "a", folder / "b", 5'000'000'000);
  std::vector<std::string> expected = names_in(folder / "a");
  std::erase(expected, "optimizer.pt");
  EXPECT_EQ(names_in(folder / "b"), expected);
  for (const std::string& name : expected)
    EXPECT_EQ(read_text(folder / "a/" + name), read_text(folder / "b/" + name)) << name;
}

TEST(Checkpoint, DoublePrecisionIsSavedAsSingle) {
  const TemporaryFolder folder;
  const ModelParameters table(small_config());
  Json header, config = hf_config_json(small_config());
  dim_t reached = 0;
  for (const Parameter& parameter : table.parameters()) {
    Json shape = Json::array();
    for (int d = 0; d < parameter.shape.rank(); ++d) shape.push_back(parameter.shape[d]);
    const dim_t end = reached + 8 * parameter.shape.size();
    header[parameter.name] = {{"dtype", "F64"}, {"shape", shape}, {"data_offsets", {reached, end}}};
    reached = end;
  }
  const std::string text = header.dump();
  const std::uint64_t length = text.size();
  const double third = 1.0 / 3;
  std::string data(static_cast<std::size_t>(reached), '\0');
  std::memcpy(data.data(), &third, 8);
  write_text(folder / "a/model.safetensors", std::string(reinterpret_cast<const char*>(&length), 8) + text + data);
  config["dtype"] = config["torch_dtype"] = "float64";
  write_text(folder / "a/config.json", config.dump());

  resave(folder / "a", folder / "b", 5'000'000'000);
  const CheckpointReader reader = CheckpointReader::open(folder / "b");
  EXPECT_EQ(reader.config().dtype, DType::kF32);
  EXPECT_EQ(reader.save_format(table).config["torch_dtype"], "float32");
  EXPECT_EQ(reader.tensor("model.embed_tokens.weight").dtype, FileDType::kF32);
  float first;
  reader.read("model.embed_tokens.weight", 0, 1, &first);
  EXPECT_EQ(first, 1.0f / 3);
}

// ------------------------------------------------------------------------------------------------------- never in halves

std::vector<std::string> left_in(const TemporaryFolder& folder) { return names_in(folder.path()); }

TEST(CheckpointWriter, NothingHasTheNameUntilAllIsThere) {
  const TemporaryFolder folder;
  const ModelParameters table(small_config());
  const CheckpointFormat format = new_checkpoint_format(small_config(), table);
  {
    CheckpointWriter writer(folder / "out", table, format);
    ASSERT_EQ(left_in(folder).size(), 1u);
    EXPECT_TRUE(left_in(folder)[0].starts_with(".out.tmp-"));
    write_all_parameters(writer, table);
  }
  EXPECT_TRUE(left_in(folder).empty());  // no finish()
  {
    CheckpointWriter writer(folder / "out", table, format);
    EXPECT_TRUE(contains(message_of<InternalError>([&] { writer.finish(); }), "0 of"));
  }
  EXPECT_TRUE(left_in(folder).empty());
  write_checkpoint(folder / "out", table, format);
  EXPECT_EQ(left_in(folder), std::vector<std::string>{"out"});
}

TEST(CheckpointWriter, AFullDiskLeavesNothing) {
  const TemporaryFolder folder;
  const ModelParameters table(small_config());
  CheckpointFormat format = new_checkpoint_format(small_config(), table);
  format.max_file_bytes = 1;
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  rlimit old;
  ::getrlimit(RLIMIT_FSIZE, &old);
  const rlimit limit{400, old.rlim_max};
  ::setrlimit(RLIMIT_FSIZE, &limit);
  const std::string error = message_of<RunError>([&] { CheckpointWriter writer(folder / "out", table, format); });
  ::setrlimit(RLIMIT_FSIZE, &old);
  std::signal(SIGXFSZ, handler);
  EXPECT_TRUE(contains(error, ".safetensors: cannot reserve"));
  EXPECT_TRUE(left_in(folder).empty());
}

TEST(CheckpointWriter, ReplacesOnlyAnEmptyFolder) {
  const TemporaryFolder folder;
  const ModelParameters table(small_config());
  const CheckpointFormat format = new_checkpoint_format(small_config(), table);
  fs::create_directory(folder / "empty");
  fs::create_directory_symlink(folder / "empty", folder / "link");
  write_checkpoint(folder / "link/", table, format);  // by a link and with a slash at the end
  EXPECT_TRUE(fs::exists(folder / "empty/config.json"));
  write_checkpoint(folder / "new/deep/er", table, format);
  EXPECT_TRUE(fs::exists(folder / "new/deep/er/config.json"));
  for (const std::string& taken : {folder / "empty", folder / "empty/config.json"})
    EXPECT_EQ(message_of<ConfigError>([&] { CheckpointWriter writer(taken, table, format); }),
              taken + ": exists and is not an empty folder");

  CheckpointWriter late(folder / "late", table, format);  // someone else is faster
  write_all_parameters(late, table);
  write_text(folder / "late/file", "x");
  EXPECT_TRUE(contains(message_of<RunError>([&] { late.finish(); }), "late: cannot rename"));
  EXPECT_EQ(names_in(folder / "late"), std::vector<std::string>{"file"});
}

// ------------------------------------------------------------------------------------------------------------- refusals

TEST(CheckpointReader, RefusesFoldersThatAreNone) {
  const TemporaryFolder folder;
  ::setenv("HF_HUB_CACHE", (folder / "hub").c_str(), 1);
  EXPECT_EQ(message_of([&] { CheckpointReader::open(folder / "none"); }),
            folder / "none" + ": no such folder, expected one with config.json and safetensors files");
  EXPECT_TRUE(contains(message_of([&] { CheckpointReader::open("org/none"); }), "untied never downloads"));
  write_text(folder / "file", "x");
  EXPECT_TRUE(contains(message_of([&] { CheckpointReader::open(folder / "file"); }), "is a file, expected the folder"));
  fs::create_directory(folder / "a");
  EXPECT_EQ(message_of([&] { CheckpointReader::open(folder / "a"); }), folder / "a/config.json" + ": no such file");
  write_text(folder / "a/config.json", hf_config_json(small_config()).dump());
  EXPECT_TRUE(contains(message_of([&] { CheckpointReader::open(folder / "a"); }),
                       "has neither model.safetensors nor model.safetensors.index.json"));
  write_text(folder / "a/pytorch_model.bin", "x");
  EXPECT_TRUE(contains(message_of([&] { CheckpointReader::open(folder / "a"); }), "convert it to safetensors"));
  write_text(folder / "a/model.safetensors", "version https://git-lfs.github.com/spec/v1\n");
  EXPECT_TRUE(
      contains(message_of([&] { CheckpointReader::open(folder / "a"); }), "model.safetensors: is a Git LFS pointer"));
}

TEST(CheckpointReader, OpensTheCachedSnapshotOfAHubName) {
  const TemporaryFolder folder;
  ::setenv("HF_HUB_CACHE", (folder / "hub").c_str(), 1);
  const std::string model = folder / "hub/models--org--name";
  write_small_checkpoint(model + "/blobs");
  write_text(model + "/refs/main", "abc");
  fs::create_directories(model + "/snapshots/abc");
  for (const char* name : {"config.json", "model.safetensors"})
    fs::create_symlink(fs::path("../../blobs") / name, fs::path(model + "/snapshots/abc") / name);
  const CheckpointReader reader = CheckpointReader::open("org/name");
  EXPECT_EQ(reader.folder(), model + "/snapshots/abc");
  expect_values(reader, ModelParameters(small_config()));
}

// The tensors of a checkpoint as SafetensorsWriter wants them, to be changed and written again.
using Tensors = std::vector<SafetensorsWriter::Declaration>;
Tensors tensors_of(const ModelConfig& config) {
  Tensors tensors;
  const ModelParameters table(config);
  for (const Parameter& parameter : table.parameters()) {
    tensors.push_back({parameter.name, FileDType::kF32, {}});
    for (int d = 0; d < parameter.shape.rank(); ++d)
      tensors.back().shape.push_back(static_cast<std::uint64_t>(parameter.shape[d]));
  }
  return tensors;
}

SafetensorsWriter::Declaration& named(Tensors& tensors, const std::string& name) {
  for (auto& tensor : tensors)
    if (tensor.name == name) return tensor;
  throw std::runtime_error(name);
}

TEST(CheckpointReader, ChecksEveryParameterByName) {
  struct Row {
    const char* what;
    bool tied;
    void (*change)(Tensors&);
    const char* expected;
  };
  const Row rows[] = {
      {"nothing", false, [](Tensors&) {}, ""},
      {"one missing", false,
       [](Tensors& t) { std::erase_if(t, [](auto& x) { return x.name == "model.norm.weight"; }); },
       "parameter \"model.norm.weight\" is missing"},
      {"many missing", false, [](Tensors& t) { t.erase(t.begin(), t.begin() + 3); },
       "parameter \"model.embed_tokens.weight\" is missing (and 2 more)"},
      {"head missing", false, [](Tensors& t) { t.pop_back(); },
       "parameter \"lm_head.weight\" is missing; expected it, as config.json does not set tie_word_embeddings"},
      {"wrong size", false,
       [](Tensors& t) {
         named(t, "model.embed_tokens.weight").shape = {21, 8};
       },
       "model.safetensors: tensor \"model.embed_tokens.weight\" has shape [21,8], expected [20,8] by config.json"},
      {"transposed", false,
       [](Tensors& t) {
         named(t, "model.layers.1.mlp.up_proj.weight").shape = {8, 12};
       },
       "\"model.layers.1.mlp.up_proj.weight\" has shape [8,12], expected [12,8]"},
      {"flat", false, [](Tensors& t) { named(t, "model.layers.0.mlp.up_proj.weight").shape = {96}; }, "has shape [96]"},
      {"a bias that the config denies", false,
       [](Tensors& t) {
         t.push_back({"model.layers.0.self_attn.q_proj.bias", FileDType::kF32, {8}});
       },
       "tensor \"model.layers.0.self_attn.q_proj.bias\" is no parameter of the model that config.json describes"},
      {"a block too many", false,
       [](Tensors& t) {
         t.push_back({"model.layers.2.input_layernorm.weight", FileDType::kF32, {8}});
       },
       "\"model.layers.2.input_layernorm.weight\" is no parameter"},
      {"old frequencies", false,
       [](Tensors& t) {
         t.push_back({"model.layers.0.self_attn.rotary_emb.inv_freq", FileDType::kF32, {2}});
       },
       ""},
      {"tied", true, [](Tensors&) {}, ""},
      {"tied, with a head of zeros", true,
       [](Tensors& t) {
         t.push_back({"lm_head.weight", FileDType::kF32, {20, 8}});
       },
       ""},
      {"tied, with a head of another type", true,
       [](Tensors& t) {
         t.push_back({"lm_head.weight", FileDType::kBF16, {20, 8}});
       },
       "tensor \"lm_head.weight\" differs from \"model.embed_tokens.weight\""},
      {"tied, with a head of another size", true,
       [](Tensors& t) {
         t.push_back({"lm_head.weight", FileDType::kF32, {10, 8}});
       },
       "\"lm_head.weight\" differs"},
  };
  for (const Row& row : rows) {
    SCOPED_TRACE(row.what);
    const TemporaryFolder folder;
    Tensors tensors = tensors_of(small_config(row.tied));
    row.change(tensors);
    SafetensorsWriter writer(folder / "model.safetensors", tensors);  // all zeros: the file has its full size
    write_text(folder / "config.json", hf_config_json(small_config(row.tied)).dump());
    const std::string error = error_in(folder.path());
    EXPECT_TRUE(*row.expected ? contains(error, row.expected) : contains("|" + error + "|", "||"));
  }
}

TEST(CheckpointReader, ATiedHeadMustBeTheEmbedding) {
  const TemporaryFolder folder;
  Tensors tensors = tensors_of(small_config(true));
  tensors.push_back({"lm_head.weight", FileDType::kF32, {20, 8}});
  SafetensorsWriter writer(folder / "model.safetensors", tensors);
  const float one = 1;
  writer.write("lm_head.weight", 159, &one, 1);
  write_text(folder / "config.json", hf_config_json(small_config(true)).dump());
  EXPECT_TRUE(contains(error_in(folder.path()), "\"lm_head.weight\" differs from \"model.embed_tokens.weight\""));
}

TEST(CheckpointReader, RefusesParametersOfTypesThatAreNotTrained) {
  const TemporaryFolder folder;
  write_small_checkpoint(folder / "a");
  std::string file = read_text(folder / "a/model.safetensors");
  const std::size_t row = file.find("\"model.norm.weight\""), type = file.find("F32", row);
  file.replace(type, 3, "I32");
  write_text(folder / "a/model.safetensors", file);
  EXPECT_TRUE(contains(error_in(folder / "a"), "tensor \"model.norm.weight\" is I32, expected F32, BF16, F16 or F64"));
}

TEST(CheckpointReader, FollowsTheIndexButNeverOutOfTheFolder) {
  const TemporaryFolder folder;
  const std::string index_path = folder / "a/model.safetensors.index.json";
  write_small_checkpoint(folder / "a", false, 700);
  const Json index = parse_json(read_text(index_path), "index");
  write_text(folder / "a/model-99999-of-99999.safetensors", "not in the index, not opened");
  EXPECT_EQ(error_in(folder / "a"), "");

  const auto error_with = [&](const char* tensor, const Json& file) {
    Json changed = index;
    changed["weight_map"][tensor] = file;
    write_text(index_path, changed.dump());
    return error_in(folder / "a");
  };
  for (const char* name : {"../a/model-00001-of-00006.safetensors", "/etc/passwd", "x/y.safetensors",
                           "..\\x.safetensors", "", ".", "config.json"})
    EXPECT_TRUE(contains(error_with("lm_head.weight", name), "index.json: tensor \"lm_head.weight\" is said to be in " +
                                                                 shown(name) + ", expected the name of"))
        << name;
  EXPECT_TRUE(contains(error_with("lm_head.weight", 7), "is said to be in 7, expected"));
  EXPECT_TRUE(contains(error_with("lm_head.weight", "none.safetensors"), "a/none.safetensors: no such file"));
  EXPECT_TRUE(contains(error_with("extra.weight", index["weight_map"]["lm_head.weight"]), "is said to be in model-"));

  Json incomplete = index;
  incomplete["weight_map"].erase("model.norm.weight");
  write_text(index_path, incomplete.dump());
  EXPECT_TRUE(contains(error_in(folder / "a"), "parameter \"model.norm.weight\" is missing"));

  for (const char* text : {"{}", "[]", R"({"weight_map": {}})", R"({"weight_map": []})"}) {
    write_text(index_path, text);
    EXPECT_TRUE(contains(error_in(folder / "a"), "index.json: has no weight_map")) << text;
  }
  write_text(index_path, R"({"weight_map": {"a": "x.safetensors", "a": "y.safetensors"}})");
  EXPECT_TRUE(contains(error_in(folder / "a"), "the key \"a\" occurs twice"));
}

// --------------------------------------------------------------------------------------------------- the real thing

#ifdef UNTIED_FIXTURES
TEST(Checkpoint, HuggingFaceFilesComeBackByteForByte) {
  for (const char* name : {"llama_default", "llama_llama3_tied", "llama_headdim", "llama_bias", "llama_oldconfig"}) {
    SCOPED_TRACE(name);
    const fs::path source = fs::path(UNTIED_FIXTURES) / name;
    const TemporaryFolder folder;
    resave(source, folder / "one", 5'000'000'000);
    EXPECT_EQ(read_text(folder / "one/config.json"), read_text(source / "config.json"));
    EXPECT_EQ(read_text(folder / "one/generation_config.json"), read_text(source / "generation_config.json"));
    if (fs::exists(source / "model.safetensors")) {
      EXPECT_TRUE(read_text(folder / "one/model.safetensors") == read_text(source / "model.safetensors"));
    } else {  // the same tensors in other files
      resave(source, folder / "many", 80'000);
      const CheckpointReader a = CheckpointReader::open(source), b = CheckpointReader::open(folder / "many");
      const ModelParameters table(a.config());
      for (const Parameter& parameter : table.parameters()) {
        const TensorData x = a.tensor(parameter.name), y = b.tensor(parameter.name);
        EXPECT_EQ(x.dtype, y.dtype);
        EXPECT_TRUE(std::equal(x.bytes.begin(), x.bytes.end(), y.bytes.begin(), y.bytes.end())) << parameter.name;
      }
    }
  }
}
#endif

}  // namespace
}  // namespace untied
