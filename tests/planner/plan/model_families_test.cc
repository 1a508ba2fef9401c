// What is special to single families, and configurations that nest the language model.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "nlohmann/json.hpp"
#include "planner/plan/model/family.h"
#include "planner/plan/model/model_config.h"
#include "planner/plan/model/model_spec.h"
#include "tests/planner/plan/config_json.h"

namespace lime {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// The language model of a Qwen3.5.
json Qwen3_5() {
  return {
      {"model_type", "qwen3_5_text"},   {"hidden_size", 64},
      {"num_hidden_layers", 5},         {"num_attention_heads", 4},
      {"num_key_value_heads", 2},       {"head_dim", 16},
      {"intermediate_size", 48},        {"vocab_size", 320},
      {"max_position_embeddings", 512}, {"linear_num_key_heads", 2},
      {"linear_num_value_heads", 4},    {"linear_key_head_dim", 16},
      {"linear_value_head_dim", 16},    {"rope_parameters", {{"rope_type", "default"}, {"rope_theta", 1e7}, {"mrope_section", {1, 1, 0}}}}};
}

std::vector<int> LinearLayers(const ModelConfig& config) {
  std::vector<int> layers;
  for (int layer = 0; layer < config.num_layers(); ++layer) {
    if (!config.layer(layer).has_kv()) layers.push_back(layer);
  }
  return layers;
}

TEST(ModelFamiliesTest, Qwen3_5HasLinearAttentionExceptInEachFourthLayer) {
  json config = Qwen3_5();
  ASSERT_TRUE(Parse(config).ok()) << Error(config);
  const ModelConfig parsed = *Parse(config);
  EXPECT_EQ(parsed.model_type, "qwen3_5");
  EXPECT_THAT(LinearLayers(parsed), ElementsAre(0, 1, 2, 4));
  EXPECT_EQ(parsed.layer(3).head_dim, 16);
  EXPECT_EQ(parsed.layer(3).num_kv_heads, 2);
  EXPECT_EQ(parsed.layer(4).head_dim, 0);
  EXPECT_EQ(parsed.layer(4).rope, -1);
  EXPECT_EQ(parsed.layer(4).intermediate_size, 48);
  EXPECT_EQ(parsed.ropes.at(0).dims, 4) << "a quarter of a head unless the file says another share";
  EXPECT_EQ(parsed.ropes[0].theta, 1e7);
  EXPECT_EQ(parsed.norm_offset, 1);
  EXPECT_TRUE(parsed.qk_norm && parsed.attention_gate);
  EXPECT_EQ(*parsed.linear_attention, (LinearAttentionConfig{2, 4, 16, 16, 4}));
  config["full_attention_interval"] = 2;
  EXPECT_THAT(LinearLayers(*Parse(config)), ElementsAre(0, 2, 4));
  config["layer_types"] = {"full_attention", "linear_attention", "full_attention", "full_attention", "full_attention"};
  EXPECT_THAT(LinearLayers(*Parse(config)), ElementsAre(1)) << "whatever the interval says";
  config["rope_parameters"]["partial_rotary_factor"] = 0.5;
  EXPECT_EQ(Parse(config)->ropes.at(0).dims, 8);
}

TEST(ModelFamiliesTest, WhatQwen3_5DoesNotHaveIsRefused) {
  json config = Qwen3_5();
  config["num_hidden_layers"] = 3;
  EXPECT_THAT(Error(config), HasSubstr("a model without a layer of full_attention is not supported"));
  config = Qwen3_5();
  config["layer_types"] = json::array({"sliding_attention", "sliding_attention", "x", "x", "x"});
  EXPECT_THAT(Error(config), HasSubstr("\"sliding_attention\" is not supported; full_attention and linear_attention are supported"));
  config = Qwen3_5();
  config["linear_num_value_heads"] = 3;
  EXPECT_THAT(Error(config), HasSubstr("linear_num_value_heads 3 is not a multiple of linear_num_key_heads 2"));
  config["linear_num_value_heads"] = 65536, config["linear_value_head_dim"] = 1024;
  EXPECT_THAT(Error(config), HasSubstr("is out of range"));
  for (const double share : {0.0, 0.05, 0.2, 1.5}) {
    config = Qwen3_5();
    config["partial_rotary_factor"] = share;
    EXPECT_THAT(Error(config), HasSubstr("partial_rotary_factor")) << share;
  }
  config = Qwen3_5();
  config["num_experts"] = 8;
  EXPECT_THAT(Error(config), HasSubstr("\"num_experts\" with the value 8 is not supported"));
}

TEST(ModelFamiliesTest, TheLanguageModelMayBeNested) {
  json config = {{"architectures", {"Qwen3_5ForConditionalGeneration"}}, {"model_type", "qwen3_5"}, {"text_config", Qwen3_5()}};
  ASSERT_TRUE(Parse(config).ok()) << Error(config);
  EXPECT_EQ(Parse(config)->model_type, "qwen3_5");
  EXPECT_FALSE(Parse(config)->tie_embeddings);
  config["tie_word_embeddings"] = true;
  config["eos_token_id"] = 7;
  config["quantization"] = {{"group_size", 32}, {"bits", 4}};
  EXPECT_TRUE(Parse(config)->tie_embeddings);
  EXPECT_THAT(Parse(config)->eos_token_ids, ElementsAre(7));
  EXPECT_EQ(Parse(config)->quantization->bits, 4);
  config["text_config"]["tie_word_embeddings"] = false;
  EXPECT_FALSE(Parse(config)->tie_embeddings) << "what is stated inside counts";
  config["architectures"] = {"AnyModelWithImages"};
  EXPECT_TRUE(Parse(config).ok()) << "the type of the language model decides";
  config["text_config"].erase("model_type");
  EXPECT_THAT(Error(config), HasSubstr("architecture \"AnyModelWithImages\" is not supported"));
  config["architectures"] = nullptr;
  EXPECT_TRUE(Parse(config).ok()) << Error(config);
  config["text_config"]["model_type"] = "qwen3_5_moe_text";
  EXPECT_THAT(Error(config), HasSubstr("model_type \"qwen3_5_moe_text\" is not supported"));
  config["text_config"] = Qwen3_5();
  config["text_config"].erase("hidden_size");
  EXPECT_THAT(Error(config), HasSubstr("m/config.json: text_config: field \"hidden_size\" is missing"));
  config["text_config"] = 5;
  EXPECT_EQ(Error(config), "m/config.json: field \"text_config\" is not an object");
}

TEST(ModelFamiliesTest, EveryFamilyHasANameForEachTensorAndIsFoundByItsTypes) {
  for (const Family* const family : Families()) {
    EXPECT_EQ(&FamilyOf(family->name), family);
    json config = Llama();
    config["architectures"] = nullptr;
    config["ffn_dim"] = 172;
    config["num_hidden_layers"] = 4;
    for (const std::string_view type : family->model_types) {
      config["model_type"] = type;
      if (family->rotates_part_of_heads) config["partial_rotary_factor"] = 0.5;
      if (family->needs_rope_parameters) config["rope_parameters"] = {{"rope_type", "default"}, {"rope_theta", 1e6}};
      if (family->grouped_queries) config["head_dim"] = 16;
      ASSERT_TRUE(Parse(config).ok()) << Error(config);
      EXPECT_EQ(Parse(config)->model_type, family->name);
      const auto spec = ModelSpec::FromConfig(*Parse(config), DType::kBF16, "folder");
      EXPECT_TRUE(spec.ok()) << spec.status();
    }
  }
}

TEST(ModelFamiliesTest, SomeLayersOfSmolLm3DoNotRotate) {
  json config = Llama();
  config["architectures"] = {"SmolLM3ForCausalLM"};
  config["num_hidden_layers"] = 5;
  const auto ropes = [&] {
    std::vector<int32_t> of_layer;
    const ModelConfig parsed = *Parse(config);
    for (const LayerConfig& layer : parsed.layers) of_layer.push_back(layer.rope);
    return of_layer;
  };
  ASSERT_TRUE(Parse(config).ok()) << Error(config);
  EXPECT_THAT(ropes(), ElementsAre(0, 0, 0, -1, 0)) << "each fourth unless the file says others";
  EXPECT_TRUE(Parse(config)->tie_embeddings);
  EXPECT_EQ(Parse(config)->ropes.at(0).theta, 2e6);
  config["no_rope_layer_interval"] = 2;
  EXPECT_THAT(ropes(), ElementsAre(0, -1, 0, -1, 0));
  config["no_rope_layers"] = {0, 1, 1, 1, 1};
  EXPECT_THAT(ropes(), ElementsAre(-1, 0, 0, 0, 0)) << "1 means rope";
  config["no_rope_layers"] = {0, 1};
  EXPECT_THAT(Error(config), HasSubstr("field \"no_rope_layers\" has 2 entries for 5 layers"));
  config["no_rope_layers"] = nullptr, config["use_sliding_window"] = true;
  EXPECT_THAT(Error(config), HasSubstr("\"use_sliding_window\" with the value true is not supported"));
}

TEST(ModelFamiliesTest, GraniteHasFourFactors) {
  json config = Llama();
  config["architectures"] = {"GraniteForCausalLM"};
  ASSERT_TRUE(Parse(config).ok()) << Error(config);
  EXPECT_EQ(Parse(config)->score_scale, 1) << "the default of its class";
  config.update(
      {{"embedding_multiplier", 12.0}, {"residual_multiplier", 0.22}, {"attention_multiplier", 0.0078125}, {"logits_scaling", 8}});
  EXPECT_EQ(Parse(config)->embedding_multiplier, 12);
  EXPECT_EQ(Parse(config)->residual_multiplier, 0.22);
  EXPECT_EQ(Parse(config)->score_scale, 0.0078125);
  EXPECT_EQ(Parse(config)->logits_divisor, 8);
  config["logits_scaling"] = 0;
  EXPECT_THAT(Error(config), HasSubstr("logits_scaling"));
}

TEST(ModelFamiliesTest, Phi3HasAWindowOnAllLayersAndMayRotatePartOfAHead) {
  json config = Llama();
  config["architectures"] = {"Phi3ForCausalLM"};
  ASSERT_TRUE(Parse(config).ok()) << Error(config);
  EXPECT_EQ(Parse(config)->layer(0).window, 0);
  EXPECT_EQ(Parse(config)->norm_eps, 1e-5);
  config["sliding_window"] = 23, config["partial_rotary_factor"] = 0.75;
  EXPECT_EQ(Parse(config)->layer(1).window, 23);
  EXPECT_EQ(Parse(config)->ropes.at(0).dims, 6);
  config["rope_scaling"] = {{"type", "longrope"}, {"short_factor", {1, 1, 1}}, {"long_factor", {2, 2, 2}}};
  EXPECT_THAT(Error(config), HasSubstr("\"longrope\" is not supported"));
  config["rope_scaling"]["type"] = "yarn";
  EXPECT_THAT(Error(config), HasSubstr("\"short_factor\" is not supported"));
}

TEST(ModelFamiliesTest, Ministral3WithoutScalingByPositionIsRead) {
  json config = Llama();
  config["model_type"] = "ministral3", config["architectures"] = {"Ministral3ForCausalLM"};
  EXPECT_THAT(Error(config), HasSubstr("field \"rope_parameters\" is missing"));
  config["rope_parameters"] = {{"type", "yarn"}, {"rope_theta", 1e6}, {"factor", 16.0}, {"original_max_position_embeddings", 8}};
  EXPECT_EQ(Parse(config)->ropes.at(0).factor, 16);
  EXPECT_EQ(Parse(config)->layer(0).head_dim, 128);
  config["rope_parameters"]["llama_4_scaling_beta"] = 0.1;
  EXPECT_THAT(Error(config), HasSubstr("\"llama_4_scaling_beta\" is not supported"));
}

}  // namespace
}  // namespace lime
