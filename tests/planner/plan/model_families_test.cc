// What is special to single families, and configurations that nest the language model.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "nlohmann/json.hpp"
#include "planner/plan/model/block_parts.h"
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
  config["sliding_window"] = 8, config["use_sliding_window"] = false;
  EXPECT_TRUE(Parse(config).ok()) << Error(config);
  config["use_sliding_window"] = true;
  EXPECT_THAT(Error(config), HasSubstr("\"use_sliding_window\" with the value true is not supported"));
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

json GptOss() {
  return {{"architectures", {"GptOssForCausalLM"}},
          {"model_type", "gpt_oss"},
          {"hidden_size", 64},
          {"intermediate_size", 32},
          {"num_hidden_layers", 4},
          {"num_attention_heads", 6},
          {"num_key_value_heads", 2},
          {"head_dim", 16},
          {"vocab_size", 320},
          {"max_position_embeddings", 131072},
          {"num_local_experts", 8},
          {"num_experts_per_tok", 3},
          {"hidden_act", "silu"},
          {"swiglu_limit", 7.0},
          {"rope_scaling", {{"rope_type", "yarn"}, {"factor", 32.0}, {"original_max_position_embeddings", 4096}, {"truncate", false}}}};
}

TEST(ModelFamiliesTest, GptOssHasSinksExpertsAndAWindowOnEveryOtherLayer) {
  json config = GptOss();
  ASSERT_TRUE(Parse(config).ok()) << Error(config);
  const ModelConfig parsed = *Parse(config);
  EXPECT_TRUE(parsed.sinks && parsed.qkv_bias && parsed.attention_output_bias);
  EXPECT_EQ(parsed.activation, Activation::kClampedSwiglu);
  EXPECT_EQ(parsed.activation_limit, 7);
  EXPECT_EQ(parsed.ropes[0].theta, 150000);
  EXPECT_FALSE(parsed.ropes[0].truncate);
  for (int64_t layer = 0; layer < 4; ++layer) {
    EXPECT_EQ(parsed.layer(layer).window, layer % 2 == 0 ? 128 : 0) << "the default of the class";
    EXPECT_TRUE(parsed.layer(layer).experts);
  }
  EXPECT_EQ(parsed.experts->scoring, RouterScoring::kSoftmaxOfBest);
  EXPECT_TRUE(parsed.experts->bias && parsed.experts->router_bias && parsed.experts->alternates);
  config["layer_types"] = {"full_attention", "sliding_attention", "full_attention", "full_attention"};
  config["sliding_window"] = 24;
  EXPECT_EQ(Parse(config)->layer(0).window, 0);
  EXPECT_EQ(Parse(config)->layer(1).window, 24);
  config["hidden_act"] = "gelu";
  EXPECT_FALSE(Parse(config).ok());
  config = GptOss();
  config.erase("rope_scaling");
  EXPECT_THAT(Error(config), HasSubstr("\"rope_parameters\" is missing"));
  config = GptOss();
  config["swiglu_limit"] = 0;
  EXPECT_THAT(Error(config), HasSubstr("swiglu_limit"));
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
  config["text_config"]["model_type"] = "qwen2_vl_text";
  EXPECT_THAT(Error(config), HasSubstr("model_type \"qwen2_vl_text\" is not supported"));
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
      if (family->sliding_theta > 0 && family->needs_rope_parameters) {
        const json rope = config["rope_parameters"];
        config["rope_parameters"] = {{"full_attention", rope}, {"sliding_attention", rope}};
      }
      if (family->global_heads) config["hidden_size_per_layer_input"] = 0;
      if (family->name == "sparsellama") config["hidden_act"] = "fatrelu", config["hidden_act_param"] = 0.01;
      if (family->name == "bamboo") config["hidden_act"] = "relu";
      if (family->latent_attention) {
        for (const char* size : {"q_lora_rank", "kv_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim"}) config[size] = 8;
      }
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
  config["rope_scaling"] = {{"type", "yarn"}, {"factor", 4.0}, {"short_factor", {1, 1, 1}}};
  EXPECT_THAT(Error(config), HasSubstr("\"short_factor\" is not supported"));
}

TEST(ModelFamiliesTest, LongRopeOfPhi3HasAFactorForEachFrequency) {
  json config = Llama();
  config["rope_scaling"] = {{"type", "longrope"}, {"short_factor", {1, 1, 1}}, {"long_factor", {2, 2.5, 3}}};
  EXPECT_THAT(Error(config), HasSubstr("\"longrope\" is not supported"));
  config["architectures"] = {"Phi3ForCausalLM"};
  config["partial_rotary_factor"] = 0.75, config["max_position_embeddings"] = 512, config["original_max_position_embeddings"] = 128;
  for (const char* name : {"longrope", "su"}) {
    config["rope_scaling"]["type"] = name;
    ASSERT_TRUE(Parse(config).ok()) << Error(config);
    const RopeConfig rope = Parse(config)->ropes.at(0);
    EXPECT_EQ(rope.type, RopeType::kLongRope);
    EXPECT_THAT(rope.long_factors, ElementsAre(2, 2.5, 3));
    EXPECT_THAT(rope.short_factors, ElementsAre(1, 1, 1));
    EXPECT_NEAR(rope.attention_factor, std::sqrt(1 + std::log(4) / std::log(128)), 1e-12);
    EXPECT_EQ(Parse(config)->short_positions(), 128);
    EXPECT_EQ(Parse(config)->max_positions, 512);
  }
  config["rope_scaling"]["factor"] = 4.0, config["rope_scaling"]["attention_factor"] = 1.5;
  EXPECT_EQ(Parse(config)->ropes.at(0).attention_factor, 1.5);
  config["rope_scaling"]["factor"] = 8.0;
  EXPECT_THAT(Error(config), HasSubstr("factor 8 of longrope is not supported"));
  config["rope_scaling"].erase("factor");
  config["rope_scaling"]["short_mscale"] = 1.1;
  EXPECT_THAT(Error(config), HasSubstr("\"short_mscale\" is not supported"));
  config["rope_scaling"].erase("short_mscale");
  config["rope_scaling"]["original_max_position_embeddings"] = 64;
  EXPECT_THAT(Error(config), HasSubstr("original_max_position_embeddings 64 beside 128; state it once"));
  config["rope_scaling"].erase("original_max_position_embeddings");
  config["rope_scaling"]["long_factor"] = {2, 2};
  EXPECT_THAT(Error(config), HasSubstr("\"long_factor\" has 2 factors for 3 frequencies"));
  config["rope_scaling"]["long_factor"] = {2, 0, 2};
  EXPECT_THAT(Error(config), HasSubstr("long_factor[1]"));
  config["rope_scaling"].erase("long_factor");
  EXPECT_THAT(Error(config), HasSubstr("\"long_factor\" is missing"));
}

// The text of a Gemma 3 4B states no more than these fields.
json Gemma3() {
  return {{"model_type", "gemma3_text"},
          {"hidden_size", 2560},
          {"intermediate_size", 10240},
          {"num_hidden_layers", 34},
          {"rope_scaling", {{"factor", 8.0}, {"rope_type", "linear"}}},
          {"sliding_window", 1024}};
}

TEST(ModelFamiliesTest, Gemma3LeavesMostToTheDefaultsOfItsClass) {
  json config = Gemma3();
  ASSERT_TRUE(Parse(config).ok()) << Error(config);
  const ModelConfig parsed = *Parse(config);
  EXPECT_EQ(parsed.num_heads, 8);
  EXPECT_EQ(parsed.vocab_size, 262208);
  EXPECT_EQ(parsed.max_positions, 131072) << "which includes the scaling";
  EXPECT_EQ(parsed.layer(0).num_kv_heads, 4);
  EXPECT_EQ(parsed.layer(0).head_dim, 256);
  EXPECT_EQ(parsed.norm_eps, 1e-6);
  EXPECT_EQ(parsed.norm_offset, 1);
  EXPECT_EQ(parsed.activation, Activation::kGeluTanh);
  EXPECT_EQ(parsed.score_scale, 1.0 / 16);
  EXPECT_EQ(parsed.embedding_multiplier, std::sqrt(2560.0));
  EXPECT_TRUE(parsed.tie_embeddings && parsed.qk_norm && parsed.after_norms && parsed.gated_mlp);
  EXPECT_EQ(parsed.score_cap, 0);
  EXPECT_EQ(parsed.logits_cap, 0);
  config["final_logit_softcapping"] = 30.0, config["attn_logit_softcapping"] = 50.0, config["query_pre_attn_scalar"] = 4;
  EXPECT_EQ(Parse(config)->logits_cap, 30);
  EXPECT_EQ(Parse(config)->score_cap, 50);
  EXPECT_EQ(Parse(config)->score_scale, 0.5);
  config["hidden_activation"] = "quick_gelu";
  EXPECT_THAT(Error(config), HasSubstr("activation \"quick_gelu\" is not supported"));
  for (const char* required : {"hidden_size", "intermediate_size", "num_hidden_layers"}) {
    config = Gemma3();
    config.erase(required);
    EXPECT_THAT(Error(config), HasSubstr("is missing"));
  }
}

TEST(ModelFamiliesTest, LayersOfGemma3WithAWindowRotateOtherwiseThanTheOthers) {
  json config = Gemma3();
  ModelConfig parsed = *Parse(config);
  EXPECT_EQ(parsed.layer(4).window, 1024);
  EXPECT_EQ(parsed.layer(5).window, 0) << "each sixth unless the file says others";
  ASSERT_EQ(parsed.ropes.size(), 2u);
  const auto rope = [&](int64_t layer) { return parsed.ropes.at(static_cast<size_t>(parsed.layer(layer).rope)); };
  EXPECT_EQ(rope(5).theta, 1e6);
  EXPECT_EQ(rope(5).type, RopeType::kLinear);
  EXPECT_EQ(rope(5).factor, 8);
  EXPECT_EQ(rope(4).theta, 1e4);
  EXPECT_EQ(rope(4).type, RopeType::kDefault) << "the scaling is of the other layers";
  config["rope_theta"] = 5e5, config["rope_local_base_freq"] = 2e4, config["sliding_window_pattern"] = 2;
  parsed = *Parse(config);
  EXPECT_EQ(parsed.layer(1).window, 0);
  EXPECT_EQ(rope(1).theta, 5e5);
  EXPECT_EQ(rope(0).theta, 2e4);
  config.erase("rope_scaling");
  config["rope_parameters"] = {{"full_attention", {{"rope_type", "linear"}, {"rope_theta", 7e5}, {"factor", 4.0}}},
                               {"sliding_attention", {{"rope_type", "default"}, {"rope_theta", 3e4}}}};
  parsed = *Parse(config);
  EXPECT_EQ(rope(1).theta, 7e5);
  EXPECT_EQ(rope(1).factor, 4);
  EXPECT_EQ(rope(0).theta, 3e4);
  config["rope_parameters"] = {{"rope_type", "default"}, {"rope_theta", 7e5}};
  EXPECT_THAT(Error(config), HasSubstr("rope_parameters for all layers alike is not supported"));
  config = Gemma3();
  config["num_hidden_layers"] = 2, config["layer_types"] = {"sliding_attention", "sliding_attention"};
  parsed = *Parse(config);
  EXPECT_EQ(parsed.ropes.size(), 1u);
  EXPECT_EQ(rope(1).theta, 1e4);
}

TEST(ModelFamiliesTest, TheMultiplierOfGemma3sEmbeddingHasTheWorkingDType) {
  json config = Llama();
  config.erase("architectures");
  config["model_type"] = "gemma3_text", config["hidden_size"] = 48;
  const auto multiplier = [&](DType dtype) { return ModelSpec::FromConfig(*Parse(config), dtype, "folder")->config.embedding_multiplier; };
  EXPECT_EQ(multiplier(DType::kBF16), 6.9375);
  EXPECT_EQ(multiplier(DType::kF32), static_cast<double>(std::sqrt(48.0f)));
  const ModelSpec spec = *ModelSpec::FromConfig(*Parse(config), DType::kBF16, "folder");
  const auto name = [&](BlockKind kind, TensorRole role) {
    const BlockSpec& block = spec.block({kind, 1});
    return block.tensors.at(*block.Find(role, TensorPart::kWeight)).name;
  };
  EXPECT_EQ(name(BlockKind::kAttention, TensorRole::kAfterNorm), "model.layers.1.post_attention_layernorm.weight");
  EXPECT_EQ(name(BlockKind::kMlp, TensorRole::kNorm), "model.layers.1.pre_feedforward_layernorm.weight");
  EXPECT_EQ(name(BlockKind::kMlp, TensorRole::kAfterNorm), "model.layers.1.post_feedforward_layernorm.weight");
}

// The fields of a Falcon 7B, smaller.
json Falcon() {
  return {{"model_type", "falcon"}, {"hidden_size", 64}, {"num_attention_heads", 4}, {"num_hidden_layers", 2}, {"vocab_size", 320}};
}

std::vector<std::string> NamesOf(const ModelSpec& spec, BlockId block) {
  std::vector<std::string> names;
  for (const TensorSpec& tensor : spec.block(block).tensors) names.push_back(tensor.name);
  return names;
}

json LlamaLike(const char* architecture, const char* type, const char* activation) {
  return {{"architectures", {architecture}}, {"model_type", type},       {"hidden_act", activation}, {"hidden_size", 64},
          {"intermediate_size", 96},         {"num_attention_heads", 4}, {"num_hidden_layers", 2},   {"vocab_size", 300},
          {"num_key_value_heads", 2}};
}

// With another model_type, the class is that of a model with sparse attention.
TEST(ModelFamiliesTest, ProSparseHasFatReluWithAStatedThreshold) {
  json config = LlamaLike("SparseLlamaForCausalLM", "sparsellama", "fatrelu");
  config["hidden_act_param"] = 0.01;
  ASSERT_TRUE(Parse(config).ok()) << Error(config);
  EXPECT_EQ(Parse(config)->activation, Activation::kFatRelu);
  EXPECT_EQ(Parse(config)->activation_limit, 0.01);
  for (const json& wrong : {json(-0.01), json("0.01"), json(nullptr)}) {
    config["hidden_act_param"] = wrong;
    EXPECT_THAT(Error(config), HasSubstr("hidden_act_param")) << wrong;
  }
  config.erase("hidden_act_param");
  EXPECT_THAT(Error(config), HasSubstr("hidden_act_param"));
  config["hidden_act_param"] = 0.01, config["model_type"] = "llama";
  EXPECT_THAT(Error(config), HasSubstr(R"(architecture "SparseLlamaForCausalLM" with model_type "llama" is not supported)"));
}

TEST(ModelFamiliesTest, BambooPassesGateAndUpThroughRelu) {
  json config = LlamaLike("BambooForCausalLM", "bamboo", "relu");
  ASSERT_TRUE(Parse(config).ok()) << Error(config);
  EXPECT_EQ(Parse(config)->activation, Activation::kDoubleRelu);
  EXPECT_EQ(Parse(config)->layer(0).window, 4096);
  config["hidden_act"] = "silu";
  EXPECT_THAT(Error(config), HasSubstr(R"(activation "silu" is not supported; relu is supported)"));
  config.erase("hidden_act");
  EXPECT_THAT(Error(config), HasSubstr(R"(activation "silu")")) << "what the class does without the field";
}

TEST(ModelFamiliesTest, HalvesOfFalconAreParallelAndQkvIsOneMatrix) {
  const json config = Falcon();
  ASSERT_TRUE(Parse(config).ok()) << Error(config);
  const ModelConfig parsed = *Parse(config);
  EXPECT_TRUE(parsed.parallel_halves && parsed.qkv_by_head && parsed.tie_embeddings);
  EXPECT_FALSE(parsed.parallel_norms);
  EXPECT_EQ(parsed.norm, NormKind::kLayer);
  EXPECT_EQ(parsed.norm_eps, 1e-5);
  EXPECT_EQ(parsed.activation, Activation::kGelu);
  EXPECT_FALSE(parsed.gated_mlp);
  EXPECT_EQ(parsed.layer(0).num_kv_heads, 1);
  EXPECT_EQ(parsed.layer(0).intermediate_size, 256);
  EXPECT_EQ(parsed.stream_cols(), 128);
  const ModelSpec spec = *ModelSpec::FromConfig(parsed, DType::kBF16, "folder");
  EXPECT_THAT(NamesOf(spec, {BlockKind::kAttention, 1}),
              ElementsAre("transformer.h.1.input_layernorm.weight", "transformer.h.1.input_layernorm.bias",
                          "transformer.h.1.self_attention.query_key_value.weight", "transformer.h.1.self_attention.dense.weight"));
  EXPECT_THAT(NamesOf(spec, {BlockKind::kMlp, 1}),
              ElementsAre("transformer.h.1.mlp.dense_h_to_4h.weight", "transformer.h.1.mlp.dense_4h_to_h.weight"));
  EXPECT_EQ(spec.block({BlockKind::kAttention, 1}).tensors[2].info.shape, (std::vector<int64_t>{6 * 16, 64}));
}

TEST(ModelFamiliesTest, NewerFalconsHaveKeyHeadsAndANormForEachHalf) {
  json config = Falcon();
  config["new_decoder_architecture"] = true;
  EXPECT_EQ(Parse(config)->layer(0).num_kv_heads, 4) << "as many as heads unless the file says fewer";
  config["num_kv_heads"] = 2, config["ffn_hidden_size"] = 96, config["activation"] = "relu";
  EXPECT_EQ(Parse(config)->layer(0).num_kv_heads, 2);
  EXPECT_EQ(Parse(config)->layer(0).intermediate_size, 96);
  EXPECT_EQ(Parse(config)->activation, Activation::kRelu);
  const auto spec = [&] { return *ModelSpec::FromConfig(*Parse(config), DType::kBF16, "folder"); };
  EXPECT_EQ(NamesOf(spec(), {BlockKind::kAttention, 0})[0], "transformer.h.0.ln_attn.weight");
  EXPECT_EQ(NamesOf(spec(), {BlockKind::kAttention, 0})[2], "transformer.h.0.ln_mlp.weight");
  config["num_ln_in_parallel_attn"] = 1;
  EXPECT_EQ(NamesOf(spec(), {BlockKind::kAttention, 0})[0], "transformer.h.0.input_layernorm.weight");
  EXPECT_FALSE(Parse(config)->parallel_norms);
}

TEST(ModelFamiliesTest, WhatFalconDoesNotHaveIsRefused) {
  json config = Falcon();
  config["parallel_attn"] = true, config["alibi"] = false, config["multi_query"] = true;
  EXPECT_TRUE(Parse(config).ok()) << Error(config);
  for (const auto& [name, value] : std::vector<std::pair<const char*, bool>>{
           {"parallel_attn", false}, {"alibi", true}, {"apply_residual_connection_post_layernorm", true}}) {
    config = Falcon();
    config[name] = value;
    EXPECT_THAT(Error(config),
                HasSubstr(std::string("\"") + name + "\" with the value " + (value ? "true" : "false") + " is not supported"));
  }
  config = Falcon();
  config["multi_query"] = false;
  EXPECT_EQ(Parse(config)->layer(0).num_kv_heads, 4);
  config = Llama();
  config["parallel_attn"] = true;
  EXPECT_THAT(Error(config), HasSubstr("\"parallel_attn\" with the value true is not supported")) << "of another family";
}

TEST(ModelFamiliesTest, QueriesOfMinistral3GrowWithThePosition) {
  json config = Llama();
  config["model_type"] = "ministral3", config["architectures"] = {"Ministral3ForCausalLM"};
  EXPECT_THAT(Error(config), HasSubstr("field \"rope_parameters\" is missing"));
  config["rope_parameters"] = {{"type", "yarn"}, {"rope_theta", 1e6}, {"factor", 16.0}, {"original_max_position_embeddings", 8}};
  EXPECT_EQ(Parse(config)->ropes.at(0).factor, 16);
  EXPECT_EQ(Parse(config)->layer(0).head_dim, 128);
  EXPECT_EQ(Parse(config)->ropes.at(0).query_beta, 0) << "unless the file says so";
  config["rope_parameters"]["llama_4_scaling_beta"] = 0.1;
  EXPECT_EQ(Parse(config)->ropes.at(0).query_beta, 0.1);
  EXPECT_EQ(Parse(config)->ropes.at(0).original_max_position, 8);
  config["rope_parameters"].erase("original_max_position_embeddings");
  EXPECT_THAT(Error(config), HasSubstr("field \"original_max_position_embeddings\" is missing"));
  config["rope_parameters"]["llama_4_scaling_beta"] = -1;
  EXPECT_THAT(Error(config), HasSubstr("\"llama_4_scaling_beta\" = -1 is outside"));
}

TEST(ModelFamiliesTest, OtherFamiliesHaveNoQueriesThatGrowWithThePosition) {
  json config = Llama();
  config["rope_parameters"] = {{"rope_type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 32}};
  config["rope_parameters"]["llama_4_scaling_beta"] = 0.1;
  EXPECT_THAT(Error(config), HasSubstr("\"llama_4_scaling_beta\" is not supported"));
}

// A config.json of a family with experts, with the sizes of Llama().
json WithExperts(const std::string& type, const json& fields) {
  json config = Llama();
  config["architectures"] = nullptr;
  config["model_type"] = type;
  config["head_dim"] = 16;
  config["full_attention_interval"] = 2;  // of families with linear attention
  config.update(fields);
  return config;
}

std::vector<bool> SparseLayers(const ModelConfig& config) {
  std::vector<bool> sparse;
  for (const LayerConfig& layer : config.layers) sparse.push_back(layer.experts);
  return sparse;
}

TEST(ModelFamiliesTest, LayersOfQwen3MoeWithoutExpertsAreListedOrCounted) {
  json config = WithExperts("qwen3_moe", {{"num_hidden_layers", 5}, {"num_experts", 8}, {"num_experts_per_tok", 3}});
  ASSERT_TRUE(Parse(config).ok()) << Error(config);
  ModelConfig parsed = *Parse(config);
  EXPECT_THAT(SparseLayers(parsed), ElementsAre(true, true, true, true, true));
  EXPECT_EQ(*parsed.experts, (ExpertsConfig{.count = 8, .per_token = 3, .intermediate_size = 768}));
  EXPECT_EQ(parsed.layer(0).intermediate_size, 0) << "of a dense MLP";
  config["decoder_sparse_step"] = 2, config["mlp_only_layers"] = {1, 7}, config["norm_topk_prob"] = true;
  parsed = *Parse(config);
  EXPECT_THAT(SparseLayers(parsed), ElementsAre(false, false, false, true, false));
  EXPECT_EQ(parsed.layer(0).intermediate_size, 172);
  EXPECT_TRUE(parsed.experts->normalized);
  config.erase("intermediate_size");
  EXPECT_THAT(Error(config), HasSubstr("field \"intermediate_size\" is missing"));
  config["decoder_sparse_step"] = 1, config["mlp_only_layers"] = nullptr;
  EXPECT_TRUE(Parse(config).ok()) << "no layer needs it: " << Error(config);
  config["decoder_sparse_step"] = 6;
  EXPECT_THAT(Error(config), HasSubstr("intermediate_size"));
  config["intermediate_size"] = 172;
  EXPECT_FALSE(Parse(config)->experts.has_value()) << "all layers are dense";
  config["use_sliding_window"] = true;
  EXPECT_THAT(Error(config), HasSubstr("\"use_sliding_window\" with the value true is not supported"));
}

TEST(ModelFamiliesTest, TheNumberOfExpertsMayHaveTheNameOfAnotherFamily) {
  json config = WithExperts("qwen3_moe", {{"num_local_experts", 16}, {"num_experts_per_tok", 3}});
  EXPECT_EQ(Parse(config)->experts->count, 16);
  config["num_experts"] = 8;
  EXPECT_EQ(Error(config), "m/config.json: field \"num_local_experts\" = 16, but \"num_experts\" = 8");
}

TEST(ModelFamiliesTest, RoutersScoreAsTheirFamiliesDo) {
  const ModelConfig mixtral = *Parse(WithExperts("mixtral", json::object()));
  EXPECT_EQ(*mixtral.experts,
            (ExpertsConfig{.count = 8, .per_token = 2, .intermediate_size = 172, .scoring = RouterScoring::kSoftmaxOfBest}));
  EXPECT_EQ(mixtral.norm_eps, 1e-5);
  EXPECT_EQ(mixtral.ropes.at(0).theta, 1e6);
  json config = WithExperts("minimax_m2", {{"num_local_experts", 6}, {"num_experts_per_tok", 2}, {"rotary_dim", 6}});
  const ModelConfig minimax = *Parse(config);
  EXPECT_EQ(minimax.experts->scoring, RouterScoring::kSigmoid);
  EXPECT_TRUE(minimax.experts->correction && minimax.experts->normalized && minimax.qk_norm && minimax.qk_norm_all_heads);
  EXPECT_EQ(minimax.ropes.at(0).dims, 6);
  config["rotary_dim"] = 7;
  EXPECT_THAT(Error(config), HasSubstr("field \"rotary_dim\" = 7 is odd"));
  config["rotary_dim"] = 18;
  EXPECT_THAT(Error(config), HasSubstr("\"rotary_dim\""));
  config = WithExperts("qwen3_5_moe_text", {{"num_experts", 8}, {"shared_expert_intermediate_size", 40}});
  config.erase("intermediate_size");
  const ModelConfig qwen = *Parse(config);
  EXPECT_TRUE(qwen.experts->normalized && qwen.experts->shared_scale);
  EXPECT_EQ(qwen.experts->shared_intermediate_size, 40);
  EXPECT_FALSE(qwen.linear_attention->by_key_head);
  EXPECT_TRUE(Parse(WithExperts("qwen3_next", json::object()))->linear_attention->by_key_head);
}

TEST(ModelFamiliesTest, Glm4MoeHasDenseLayersFirstAndASharedExpert) {
  json config = WithExperts("glm4_moe", {{"n_routed_experts", 8},
                                         {"num_experts_per_tok", 2},
                                         {"moe_intermediate_size", 24},
                                         {"n_shared_experts", 2},
                                         {"routed_scaling_factor", 1.75},
                                         {"attention_bias", true},
                                         {"n_group", 4},
                                         {"topk_group", 2}});
  ASSERT_TRUE(Parse(config).ok()) << Error(config);
  const ModelConfig parsed = *Parse(config);
  EXPECT_THAT(SparseLayers(parsed), ElementsAre(false, true));
  EXPECT_EQ(parsed.experts->shared_intermediate_size, 48);
  EXPECT_EQ(parsed.experts->weight_factor, 1.75);
  EXPECT_EQ(parsed.experts->groups, 4);
  EXPECT_EQ(parsed.experts->groups_kept, 2);
  EXPECT_TRUE(parsed.qkv_bias && !parsed.attention_output_bias && !parsed.qk_norm);
  EXPECT_EQ(parsed.ropes.at(0).dims, 8) << "half of a head";
  config["first_k_dense_replace"] = 0;
  EXPECT_THAT(SparseLayers(*Parse(config)), ElementsAre(true, true));
  for (const auto& [groups, kept] : {std::pair{3, 1}, {8, 4}, {4, 5}}) {
    config["n_group"] = groups, config["topk_group"] = kept;
    EXPECT_THAT(Error(config), HasSubstr("cannot be in")) << groups << " " << kept;
  }
  config["n_group"] = 4, config["topk_group"] = 1, config["num_experts_per_tok"] = 3;
  EXPECT_THAT(Error(config), HasSubstr("8 experts, of which a token uses 3, cannot be in 4 groups of which 1 are kept"));
}

TEST(ModelFamiliesTest, OtherRoutersAndNormsAreRefusedByName) {
  json config = WithExperts("minimax_m2", {{"scoring_func", "softmax"}});
  EXPECT_THAT(Error(config), HasSubstr("field \"scoring_func\" with the value \"softmax\" is not supported"));
  config = WithExperts("minimax_m2", {{"qk_norm_type", "per_head"}});
  EXPECT_THAT(Error(config), HasSubstr("field \"qk_norm_type\" with the value \"per_head\" is not supported"));
  config = WithExperts("minimax_m2", {{"attn_type_list", {1, 0}}});
  EXPECT_THAT(Error(config), HasSubstr("field \"attn_type_list\" with the value [1,0] is not supported"));
  config = WithExperts("minimax_m2", {{"shared_intermediate_size", 8}});
  EXPECT_THAT(Error(config), HasSubstr("\"shared_intermediate_size\""));
  config = WithExperts("qwen3_5_moe_text", {{"mlp_only_layers", {1}}});
  EXPECT_THAT(Error(config), HasSubstr("\"mlp_only_layers\""));
}

TEST(ModelFamiliesTest, NumbersOfExpertsHaveBounds) {
  const std::pair<const char*, json> wrong[] = {{"num_experts", 0},         {"num_experts", 1025},  {"num_experts_per_tok", 0},
                                                {"num_experts_per_tok", 9}, {"num_experts", "8"},   {"moe_intermediate_size", 1 << 21},
                                                {"decoder_sparse_step", 0}, {"mlp_only_layers", 5}, {"moe_intermediate_size", 0}};
  for (const auto& [field, value] : wrong) {
    json config = WithExperts("qwen3_moe", {{"num_experts", 8}});
    config[field] = value;
    EXPECT_THAT(Error(config), HasSubstr(std::string("field \"") + field)) << value;
  }
  json config = WithExperts("qwen3_moe", {{"num_experts", 100}, {"num_experts_per_tok", 65}});
  EXPECT_THAT(Error(config), HasSubstr("num_experts_per_tok"));
  config["num_experts_per_tok"] = 8, config["moe_intermediate_size"] = 1 << 20;
  EXPECT_THAT(Error(config), HasSubstr("100 experts of 1048576 columns are out of range"));
  config["num_experts"] = 1024, config["moe_intermediate_size"] = 8, config["num_hidden_layers"] = 100;
  EXPECT_THAT(Error(config), HasSubstr("1024 experts in each of 100 layers are out of range"));
}

// A Gemma 4 with experts, as small as Llama().
json Gemma4() {
  return WithExperts("gemma4_text",
                     {{"num_hidden_layers", 7},
                      {"global_head_dim", 32},
                      {"num_global_key_value_heads", 2},
                      {"attention_k_eq_v", true},
                      {"sliding_window", 19},
                      {"hidden_size_per_layer_input", 0},
                      {"enable_moe_block", true},
                      {"num_experts", 6},
                      {"top_k_experts", 3},
                      {"moe_intermediate_size", 24},
                      {"final_logit_softcapping", 30.0},
                      {"use_bidirectional_attention", "vision"},
                      {"rope_parameters",
                       {{"full_attention", {{"rope_type", "proportional"}, {"rope_theta", 1e6}, {"partial_rotary_factor", 0.25}}},
                        {"sliding_attention", {{"rope_type", "default"}, {"rope_theta", 1e4}}}}}});
}

TEST(ModelFamiliesTest, FullLayersOfGemma4HaveHeadsAndARotationOfTheirOwn) {
  json config = Gemma4();
  ASSERT_TRUE(Parse(config).ok()) << Error(config);
  const ModelConfig parsed = *Parse(config);
  EXPECT_EQ(parsed.score_scale, 1);
  EXPECT_EQ(parsed.logits_cap, 30);
  EXPECT_EQ(parsed.norm_offset, 0);
  EXPECT_TRUE(parsed.value_norm && parsed.qk_norm && parsed.after_norms && parsed.layer_scale && parsed.tie_embeddings);
  const LayerConfig &sliding = parsed.layer(4), &full = parsed.layer(5);
  EXPECT_EQ(sliding.window, 19);
  EXPECT_EQ(sliding.head_dim, 16);
  EXPECT_EQ(sliding.num_kv_heads, 4);
  EXPECT_FALSE(sliding.keys_are_values);
  EXPECT_EQ(full.window, 0) << "each sixth layer";
  EXPECT_EQ(full.head_dim, 32);
  EXPECT_EQ(full.num_kv_heads, 2);
  EXPECT_TRUE(full.keys_are_values);
  const auto rope = [&](const LayerConfig& layer) { return parsed.ropes.at(static_cast<size_t>(layer.rope)); };
  EXPECT_EQ(rope(full).type, RopeType::kProportional);
  EXPECT_EQ(rope(full).dims, 32) << "exponents over the whole head";
  EXPECT_EQ(rope(full).turning, 8) << "a quarter of it";
  EXPECT_EQ(rope(full).factor, 1);
  EXPECT_EQ(rope(sliding).type, RopeType::kDefault);
  EXPECT_EQ(rope(sliding).dims, 16);
  config["attention_k_eq_v"] = false;
  EXPECT_EQ(Parse(config)->layer(5).num_kv_heads, 4) << "num_global_key_value_heads is of keys that are values";
  config["rope_parameters"]["full_attention"]["factor"] = 0;
  EXPECT_THAT(Error(config), HasSubstr("\"factor\""));
  config["global_head_dim"] = 33;
  EXPECT_THAT(Error(config), HasSubstr("a head of 33 dimensions is odd"));
  config.erase("rope_parameters");
  EXPECT_THAT(Error(config), HasSubstr("field \"rope_parameters\" is missing"));
}

TEST(ModelFamiliesTest, NewerFilesOfGemma4StateTheHeadsOfSingleLayers) {
  json config = Gemma4();
  config["num_hidden_layers"] = 12;
  config.erase("global_head_dim"), config.erase("num_global_key_value_heads");
  config["per_layer_config"] = {{"5", {{"head_dim", 64}, {"num_key_value_heads", 1}}},
                                {"11", {{"head_dim", 64}, {"num_key_value_heads", 1}}}};
  ASSERT_TRUE(Parse(config).ok()) << Error(config);
  EXPECT_EQ(Parse(config)->layer(5).head_dim, 64);
  EXPECT_EQ(Parse(config)->layer(11).num_kv_heads, 1);
  EXPECT_EQ(Parse(config)->layer(10).head_dim, 16);
  EXPECT_EQ(Parse(config)->ropes.at(0).dims, 64);
  json other = config;
  other["per_layer_config"]["11"]["head_dim"] = 32;
  EXPECT_THAT(Error(other), HasSubstr("per_layer_config with other heads in layer 11 than in other layers of its type is not supported"));
  other = config;
  other["per_layer_config"]["3"] = {{"num_key_value_heads", 2}};
  EXPECT_THAT(Error(other), HasSubstr("with other heads in layer 3"));
  other = config;
  other["per_layer_config"]["5"]["sliding_window"] = 7;
  EXPECT_THAT(Error(other), HasSubstr("\"sliding_window\" of a single layer is not supported"));
  for (const json& wrong :
       {json{{"five", json::object()}}, json{{"-1", json::object()}}, json{{"05", json::object()}}, json{{"5", 3}}, json{3}}) {
    other["per_layer_config"] = wrong;
    EXPECT_FALSE(Parse(other).ok()) << wrong;
  }
}

TEST(ModelFamiliesTest, Gemma4HasExpertsBesideADenseMlp) {
  json config = Gemma4();
  const ModelConfig parsed = *Parse(config);
  EXPECT_EQ(
      *parsed.experts,
      (ExpertsConfig{
          .count = 6, .per_token = 3, .intermediate_size = 24, .shared_intermediate_size = 172, .normalized = true, .norms_apart = true}));
  const ModelSpec spec = *ModelSpec::FromConfig(parsed, DType::kBF16, "folder");
  const auto tensor = [&](BlockId id, TensorRole role, int32_t expert = -1) {
    const BlockSpec& block = spec.block(id);
    return block.tensors.at(*block.Find(role, TensorPart::kWeight, expert));
  };
  EXPECT_EQ(tensor({BlockKind::kExperts, 1}, TensorRole::kNorm).name, "model.layers.1.pre_feedforward_layernorm_2.weight");
  EXPECT_EQ(tensor({BlockKind::kExperts, 1}, TensorRole::kRouterNorm).name, "model.layers.1.router.scale");
  EXPECT_EQ(tensor({BlockKind::kExperts, 1}, TensorRole::kSharedGate).name, "model.layers.1.mlp.gate_proj.weight");
  EXPECT_EQ(tensor({BlockKind::kExperts, 1}, TensorRole::kUp, 5).name, "model.layers.1.experts.gate_up_proj");
  EXPECT_EQ(tensor({BlockKind::kExperts, 1}, TensorRole::kLayerScale).info.shape, (std::vector<int64_t>{1}));
  EXPECT_TRUE(spec.block({BlockKind::kAttention, 4}).Find(TensorRole::kV, TensorPart::kWeight).has_value());
  EXPECT_FALSE(spec.block({BlockKind::kAttention, 5}).Find(TensorRole::kV, TensorPart::kWeight).has_value()) << "its keys are values";
  config["enable_moe_block"] = false, config["num_experts"] = nullptr;
  const ModelConfig dense = *Parse(config);
  EXPECT_FALSE(dense.experts.has_value());
  EXPECT_EQ(dense.layer(0).intermediate_size, 172);
}

json Gemma4E2b() {
  json config = Gemma4();
  config["enable_moe_block"] = false, config["num_experts"] = nullptr, config["attention_k_eq_v"] = false;
  config["num_hidden_layers"] = 7;
  config["layer_types"] = {"sliding_attention", "full_attention",    "sliding_attention", "full_attention",
                           "sliding_attention", "sliding_attention", "full_attention"};
  config["hidden_size_per_layer_input"] = 8, config["num_kv_shared_layers"] = 3, config["use_double_wide_mlp"] = true;
  return config;
}

TEST(ModelFamiliesTest, LastLayersOfGemma4E2bTakeKeysAndValuesOfTheLastLayerOfTheirTypeThatHasThem) {
  json config = Gemma4E2b();
  ASSERT_TRUE(Parse(config).ok()) << Error(config);
  const ModelConfig parsed = *Parse(config);
  std::vector<int32_t> shared, takes;
  for (const LayerConfig& layer : parsed.layers) shared.push_back(layer.shared_kv), takes.push_back(layer.takes_kv);
  EXPECT_THAT(shared, ElementsAre(-1, -1, 0, 1, 0, 0, 1)) << "2 is the last sliding layer before 4, 3 the last full one";
  EXPECT_THAT(takes, ElementsAre(0, 0, 0, 0, 1, 1, 1));
  EXPECT_THAT(parsed.shared_kv_cols, ElementsAre(parsed.kv_cols(2), parsed.kv_cols(3)));
  EXPECT_EQ(parsed.layer(3).intermediate_size, 172);
  EXPECT_EQ(parsed.layer(4).intermediate_size, 344);
  config["use_double_wide_mlp"] = false;
  EXPECT_EQ(Parse(config)->layer(4).intermediate_size, 172);
  const ModelSpec spec = *ModelSpec::FromConfig(parsed, DType::kBF16, "folder");
  const BlockSpec &own = spec.block({BlockKind::kAttention, 3}), &taken = spec.block({BlockKind::kAttention, 4});
  for (const TensorRole role : {TensorRole::kK, TensorRole::kV, TensorRole::kKNorm}) {
    EXPECT_TRUE(own.Find(role, TensorPart::kWeight).has_value());
    EXPECT_FALSE(taken.Find(role, TensorPart::kWeight).has_value());
  }
  EXPECT_TRUE(taken.Find(TensorRole::kQNorm, TensorPart::kWeight).has_value());
}

TEST(ModelFamiliesTest, EveryLayerOfGemma4E2bHasAnEmbeddingOfItsOwn) {
  json config = Gemma4E2b();
  const ModelConfig parsed = *Parse(config);
  EXPECT_EQ(parsed.layer_inputs, 8);
  EXPECT_EQ(parsed.layer_input_cols, 7 * 8);
  EXPECT_EQ(parsed.stream_cols(), parsed.hidden_size + 7 * 8 + 2 * parsed.kv_cols(2) + 2 * parsed.kv_cols(3))
      << "they travel with the residual stream, as shared keys and values do";
  const ModelSpec spec = *ModelSpec::FromConfig(parsed, DType::kBF16, "folder");
  const auto tensor = [&](BlockId id, TensorRole role) {
    const BlockSpec& block = spec.block(id);
    return block.tensors.at(*block.Find(role, TensorPart::kWeight));
  };
  const TensorSpec table = tensor({BlockKind::kEmbedding, 0}, TensorRole::kLayerEmbedding);
  EXPECT_EQ(table.name, "model.embed_tokens_per_layer.weight");
  EXPECT_EQ(table.info.shape, (std::vector<int64_t>{parsed.vocab_size, 56}));
  EXPECT_TRUE(IsPinned(table));
  EXPECT_EQ(tensor({BlockKind::kEmbedding, 0}, TensorRole::kLayerProjection).name, "model.per_layer_model_projection.weight");
  EXPECT_EQ(tensor({BlockKind::kEmbedding, 0}, TensorRole::kLayerInputNorm).info.shape, (std::vector<int64_t>{8}));
  EXPECT_EQ(tensor({BlockKind::kMlp, 6}, TensorRole::kLayerGate).name, "model.layers.6.per_layer_input_gate.weight");
  EXPECT_EQ(tensor({BlockKind::kMlp, 6}, TensorRole::kLayerUp).name, "model.layers.6.per_layer_projection.weight");
  EXPECT_EQ(tensor({BlockKind::kMlp, 6}, TensorRole::kLayerAfterNorm).name, "model.layers.6.post_per_layer_input_norm.weight");
  config.erase("hidden_size_per_layer_input");
  EXPECT_EQ(Parse(config)->layer_inputs, 256) << "the default of the class";
}

TEST(ModelFamiliesTest, Gemma4IsRefusedByTheNameOfWhatIsNotSupported) {
  json config = Gemma4();
  config["hidden_size_per_layer_input"] = 8;
  EXPECT_THAT(Error(config), HasSubstr("hidden_size_per_layer_input with experts is not supported"));
  config = Gemma4E2b();
  config["vocab_size_per_layer_input"] = 100;
  EXPECT_THAT(Error(config), HasSubstr("vocab_size_per_layer_input 100 is not supported"));
  config = Gemma4E2b();
  config.erase("use_double_wide_mlp");
  EXPECT_THAT(Error(config), HasSubstr("\"use_double_wide_mlp\" is missing"));
  config = Gemma4E2b();
  config["num_kv_shared_layers"] = 6;
  EXPECT_THAT(Error(config), HasSubstr("num_kv_shared_layers 6 leaves layer 1 without a layer to take K and V from"));
  config["num_kv_shared_layers"] = 7;
  EXPECT_THAT(Error(config), HasSubstr("num_kv_shared_layers"));
  config = Gemma4();
  config["use_bidirectional_attention"] = "all";
  EXPECT_THAT(Error(config), HasSubstr("\"use_bidirectional_attention\" with the value \"all\" is not supported"));
}

json Glm4MoeLite() {
  return WithExperts("glm4_moe_lite", {{"num_hidden_layers", 3},
                                       {"q_lora_rank", 28},
                                       {"kv_lora_rank", 20},
                                       {"qk_rope_head_dim", 8},
                                       {"qk_nope_head_dim", 12},
                                       {"v_head_dim", 16},
                                       {"rope_interleave", true},
                                       {"n_routed_experts", 6},
                                       {"num_experts_per_tok", 2},
                                       {"moe_intermediate_size", 24}});
}

TEST(ModelFamiliesTest, Glm4MoeLiteKeepsALatentForEachPosition) {
  const json config = Glm4MoeLite();
  ASSERT_TRUE(Parse(config).ok()) << Error(config);
  const ModelConfig parsed = *Parse(config);
  EXPECT_EQ(*parsed.latent_attention, (LatentAttentionConfig{.query_rank = 28, .rank = 20, .rotated = 8, .plain = 12, .value_dim = 16}));
  EXPECT_EQ(parsed.latent_attention->norm_eps, 1e-6);
  EXPECT_EQ(parsed.norm_eps, 1e-5);
  EXPECT_EQ(parsed.score_scale, 1 / std::sqrt(20.0));
  EXPECT_EQ(parsed.layer(0).num_kv_heads, 1);
  EXPECT_EQ(parsed.layer(0).head_dim, 28);
  EXPECT_EQ(parsed.kept_cols(0), 28);
  EXPECT_EQ(parsed.ropes.at(0).dims, 8);
  EXPECT_FALSE(parsed.HasAlikeKv());
  EXPECT_EQ(parsed.experts->weight_factor, 1.8);
  EXPECT_THAT(SparseLayers(parsed), ElementsAre(false, true, true));
  const ModelSpec spec = *ModelSpec::FromConfig(parsed, DType::kBF16, "folder");
  EXPECT_EQ(spec.KvPageBytes(), 16 * 28 * 2);
  EXPECT_EQ(spec.KvBytesPerToken(), 3 * 28 * 2);
  const BlockSpec& block = spec.block({BlockKind::kAttention, 1});
  const TensorSpec& up = block.tensors.at(*block.Find(TensorRole::kKvUp, TensorPart::kWeight));
  EXPECT_EQ(up.name, "model.layers.1.self_attn.kv_b_proj.weight");
  EXPECT_EQ(up.info.shape, (std::vector<int64_t>{8 * 28, 20}));
  EXPECT_TRUE(IsPinned(up)) << "it is used before and after attention";
  EXPECT_EQ(block.tensors.at(*block.Find(TensorRole::kO, TensorPart::kWeight)).info.shape, (std::vector<int64_t>{64, 8 * 16}));
  EXPECT_FALSE(block.Find(TensorRole::kQ, TensorPart::kWeight).has_value());
}

TEST(ModelFamiliesTest, LatentAttentionIsRefusedByTheNameOfWhatIsNotSupported) {
  json config = Glm4MoeLite();
  config["q_lora_rank"] = nullptr;
  EXPECT_THAT(Error(config), HasSubstr("latent attention without \"q_lora_rank\" is not supported"));
  config = Glm4MoeLite();
  config["rope_interleave"] = false;
  EXPECT_THAT(Error(config), HasSubstr("rope_interleave false is not supported"));
  config = Glm4MoeLite();
  config["rope_scaling"] = {{"rope_type", "yarn"}, {"factor", 4.0}, {"mscale_all_dim", 1.0}};
  EXPECT_THAT(Error(config), HasSubstr("rope_scaling with latent attention is not supported"));
  config["rope_scaling"] = {{"type", 3}};
  EXPECT_FALSE(Parse(config).ok());
  config = Glm4MoeLite();
  config["qk_rope_head_dim"] = 7;
  EXPECT_THAT(Error(config), HasSubstr("qk_rope_head_dim 7 is odd"));
  config = Glm4MoeLite();
  config["kv_lora_rank"] = 2000;
  EXPECT_THAT(Error(config), HasSubstr("\"kv_lora_rank\""));
  config = Llama();
  config["kv_lora_rank"] = 20;
  EXPECT_THAT(Error(config), HasSubstr("\"kv_lora_rank\" with the value 20 is not supported")) << "of other families";
}

}  // namespace
}  // namespace lime
