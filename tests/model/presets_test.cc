#include "model/presets.h"

#include <gtest/gtest.h>

#include <set>

#include "base/error.h"

namespace untied {
namespace {

TEST(Presets, HaveThePublishedNumberOfParameters) {
  struct Row {
    const char* name;
    dim_t parameters;  // elements in the published checkpoint
    const char* family;
  };
  const Row rows[] = {
      {"llama-3.2-1b", 1'235'814'400, "llama"},   {"llama-3.2-3b", 3'212'749'824, "llama"},
      {"llama-3-8b", 8'030'261'248, "llama"},     {"llama-3.1-8b", 8'030'261'248, "llama"},
      {"llama-3.1-70b", 70'553'706'496, "llama"}, {"qwen2.5-7b", 7'615'616'512, "qwen2"},
      {"qwen3-0.6b", 596'049'920, "qwen3"},       {"qwen3-8b", 8'190'735'360, "qwen3"},
      {"qwen3-32b", 32'762'123'264, "qwen3"},     {"mistral-7b", 7'248'023'552, "mistral"},
  };
  std::set<std::string> listed;
  for (const std::string& name : preset_names()) listed.insert(name);
  EXPECT_EQ(listed.size(), preset_names().size());
  EXPECT_EQ(listed.size(), std::size(rows) + 1);  // and `tiny`
  EXPECT_TRUE(listed.contains("tiny"));
  for (const Row& row : rows) {
    const std::optional<ModelConfig> config = find_preset(row.name);
    ASSERT_TRUE(config) << row.name;
    EXPECT_TRUE(listed.contains(row.name));
    EXPECT_EQ(parameter_count(*config), row.parameters) << row.name;
    EXPECT_EQ(config->family, row.family);
    EXPECT_EQ(config->dtype, DType::kBF16);
  }
  EXPECT_FALSE(find_preset("llama"));
}

TEST(Presets, AreValid) {
  for (const std::string& name : preset_names()) EXPECT_NO_THROW(validate(*find_preset(name), name)) << name;
}

TEST(Presets, EmbeddingIsNotCountedTwiceNorForgotten) {
  const ModelConfig untied = *find_preset("llama-3-8b"), tied = *find_preset("llama-3.2-1b");
  EXPECT_EQ(non_embedding_parameter_count(untied), 8'030'261'248 - 128256 * 4096);
  EXPECT_EQ(non_embedding_parameter_count(tied), 1'235'814'400);  // its table is the head as well
}

TEST(Presets, TinyIsForBytes) {
  const ModelConfig tiny = *find_preset("tiny");
  EXPECT_EQ(tiny.vocab, 256);
  EXPECT_EQ(tiny.family, "llama");
  EXPECT_EQ(tiny.dtype, DType::kF32);
  EXPECT_LT(parameter_count(tiny), 2'000'000);
}

}  // namespace
}  // namespace untied
