#include "model/parameters.h"

#include <gtest/gtest.h>

#include <set>

#include "base/error.h"
#include "model/presets.h"

namespace untied {
namespace {

ModelConfig small_config() {
  ModelConfig config;
  config.hidden = 24;
  config.blocks = 2;
  config.heads = 6;
  config.kv_heads = 2;
  config.head_dim = 10;  // 6 * 10 is not 24
  config.mlp = 40;
  config.vocab = 50;
  return config;
}

// One line per parameter: name, shape, heads, init, decay.
std::string listing(const ParameterTable& table, int unit) {
  static const char* const heads[] = {"", " query-rows", " query-cols", " key-rows"};
  static const char* const inits[] = {"normal", "ones", "zeros"};
  std::string text = table.units()[unit].name + "\n";
  for (int i : table.units()[unit].parameters) {
    const Parameter& p = table.parameters()[i];
    text += p.name + " " + p.shape.str() + " " + inits[static_cast<int>(p.init)] + heads[static_cast<int>(p.heads)] +
            (p.decays ? " decays\n" : "\n");
  }
  return text;
}

TEST(ParameterTable, ListsEveryUnit) {
  const ModelParameters table(small_config());
  EXPECT_EQ(table.units().size(), 1u + 2 * 2 + 2);
  EXPECT_EQ(listing(table, table.unit(UnitKind::kEmbedding)),
            "embedding\n"
            "model.embed_tokens.weight [50, 24] normal decays\n");
  EXPECT_EQ(listing(table, table.unit(UnitKind::kAttention, 1)),
            "block 1 attention\n"
            "model.layers.1.input_layernorm.weight [24] ones\n"
            "model.layers.1.self_attn.q_proj.weight [60, 24] normal query-rows decays\n"
            "model.layers.1.self_attn.k_proj.weight [20, 24] normal key-rows decays\n"
            "model.layers.1.self_attn.v_proj.weight [20, 24] normal key-rows decays\n"
            "model.layers.1.self_attn.o_proj.weight [24, 60] normal query-cols decays\n");
  EXPECT_EQ(listing(table, table.unit(UnitKind::kMlp, 0)),
            "block 0 mlp\n"
            "model.layers.0.post_attention_layernorm.weight [24] ones\n"
            "model.layers.0.mlp.gate_proj.weight [40, 24] normal decays\n"
            "model.layers.0.mlp.up_proj.weight [40, 24] normal decays\n"
            "model.layers.0.mlp.down_proj.weight [24, 40] normal decays\n");
  EXPECT_EQ(listing(table, table.unit(UnitKind::kFinalNorm)),
            "final norm\n"
            "model.norm.weight [24] ones\n");
  EXPECT_EQ(listing(table, table.unit(UnitKind::kHead)),
            "head\n"
            "lm_head.weight [50, 24] normal decays\n");
}

TEST(ParameterTable, Biases) {
  ModelConfig config = small_config();
  config.attention_bias = config.mlp_bias = true;
  const ModelParameters table(config);
  const std::string attention = listing(table, table.unit(UnitKind::kAttention, 0));
  const std::string mlp = listing(table, table.unit(UnitKind::kMlp, 1));
  for (const char* line :
       {"self_attn.q_proj.bias [60] zeros query-rows\n", "self_attn.k_proj.bias [20] zeros key-rows\n",
        "self_attn.v_proj.bias [20] zeros key-rows\n", "self_attn.o_proj.bias [24] zeros\n"})
    EXPECT_NE(attention.find(line), std::string::npos) << line;
  for (const char* line :
       {"mlp.gate_proj.bias [40] zeros\n", "mlp.up_proj.bias [40] zeros\n", "mlp.down_proj.bias [24] zeros\n"})
    EXPECT_NE(mlp.find(line), std::string::npos) << line;
}

TEST(ParameterTable, ATiedHeadIsTheEmbedding) {
  ModelConfig config = small_config();
  config.tied = true;
  const ModelParameters table(config);
  EXPECT_EQ(table.find("lm_head.weight"), -1);
  EXPECT_EQ(table.unit(UnitKind::kHead), table.unit(UnitKind::kEmbedding));
  EXPECT_EQ(table.units().size(), 1u + 2 * 2 + 1);
}

TEST(ParameterTable, FindsByNameAndBySuffix) {
  const ModelParameters table(small_config());
  const int attention = table.unit(UnitKind::kAttention, 1);
  EXPECT_EQ(table.in_unit(attention, "q_proj.weight"), table.find("model.layers.1.self_attn.q_proj.weight"));
  EXPECT_EQ(table.in_unit(attention, "proj.weight"), -1);  // whole components only
  EXPECT_EQ(table.in_unit(attention, "q_proj.bias"), -1);
  EXPECT_EQ(table.in_unit(table.unit(UnitKind::kHead), "lm_head.weight"), table.find("lm_head.weight"));
  EXPECT_EQ(table.find("model.layers.2.self_attn.q_proj.weight"), -1);
  EXPECT_THROW(table.unit(UnitKind::kMlp, 2), InternalError);
  EXPECT_THROW(table.unit(UnitKind::kAttention), InternalError);
}

TEST(ParameterTable, OffsetsAreAlignedAndDisjoint) {
  ModelConfig config = small_config();
  config.attention_bias = config.mlp_bias = true;
  const ModelParameters table(config);
  std::set<std::string> names;
  for (std::size_t u = 0; u < table.units().size(); ++u) {
    dim_t end = 0;
    for (int i : table.units()[u].parameters) {
      const Parameter& parameter = table.parameters()[i];
      EXPECT_EQ(parameter.unit, static_cast<int>(u));
      EXPECT_EQ(parameter.offset % 64, 0);
      EXPECT_GE(parameter.offset, end);
      EXPECT_LT(parameter.offset - end, 64);
      end = parameter.offset + parameter.shape.size();
      EXPECT_TRUE(names.insert(parameter.name).second) << parameter.name;
    }
    EXPECT_GE(table.units()[u].size, end);
    EXPECT_LT(table.units()[u].size - end, 64);
  }
  EXPECT_EQ(names.size(), table.parameters().size());
}

TEST(ParameterTable, AgreesWithTheFormula) {
  for (int bits = 0; bits < 8; ++bits) {
    ModelConfig config = small_config();
    config.tied = bits & 1;
    config.attention_bias = bits & 2;
    config.mlp_bias = bits & 4;
    const ModelParameters table(config);
    dim_t total = 0;
    for (const Parameter& parameter : table.parameters()) total += parameter.shape.size();
    EXPECT_EQ(total, parameter_count(config)) << bits;
  }
}

TEST(ParameterTable, OtherFamiliesAreRefusedByName) {
  for (const std::string& name : preset_names()) {
    const ModelConfig config = *find_preset(name);
    if (config.family == "llama") {
      EXPECT_NO_THROW(ModelParameters{config}) << name;
    } else {
      EXPECT_THROW(ModelParameters{config}, InputError) << name;
    }
  }
}

}  // namespace
}  // namespace untied
