#include "planner/plan/model/model_config.h"

#include <cmath>
#include <string>
#include <tuple>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "planner/plan/model/token_ids.h"
#include "tests/planner/plan/config_json.h"

namespace lime {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(ModelConfigTest, ReadsLlamaWithDefaults) {
  const ModelConfig config = *Parse(Llama());
  EXPECT_EQ(config.model_type, "llama");
  EXPECT_EQ(config.num_layers(), 2);
  EXPECT_EQ(config.layer(1).head_dim, 8);
  EXPECT_EQ(config.layer(1).num_kv_heads, 4);
  EXPECT_EQ(config.layer(1).intermediate_size, 172);
  EXPECT_FALSE(config.tie_embeddings);
  EXPECT_EQ(config.ropes.at(0).type, RopeType::kDefault);
  EXPECT_EQ(config.ropes.at(0).theta, 10000.0);
}

TEST(ModelConfigTest, ReadsEveryRopeType) {
  json config = Llama();
  config["rope_scaling"] = {{"rope_type", "llama3"},
                            {"factor", 8.0},
                            {"low_freq_factor", 1.0},
                            {"high_freq_factor", 4.0},
                            {"original_max_position_embeddings", 8192}};
  EXPECT_EQ(Parse(config)->ropes.at(0).type, RopeType::kLlama3);
  EXPECT_EQ(Parse(config)->ropes.at(0).original_max_position, 8192);
  config["rope_scaling"] = {{"type", "linear"}, {"factor", 2.0}};
  EXPECT_EQ(Parse(config)->ropes.at(0).type, RopeType::kLinear);
  config["rope_scaling"] = {{"type", "dynamic"}, {"factor", 2.0}};
  EXPECT_EQ(Parse(config)->ropes.at(0).type, RopeType::kDynamic);
  config["rope_scaling"] = {{"type", "yarn"}, {"factor", 4.0}};
  EXPECT_NEAR(Parse(config)->ropes.at(0).attention_factor, 0.1 * std::log(4.0) + 1.0, 1e-12);
  config["rope_scaling"] = {{"type", "longrope"}, {"factor", 4.0}};
  EXPECT_THAT(Error(config), HasSubstr("\"longrope\" is not supported; default, linear, dynamic, llama3 and yarn"));
}

TEST(ModelConfigTest, ReadsTheRopeParametersOfNewerFiles) {
  json config = Llama();
  config["rope_parameters"] = {{"rope_type", "default"}, {"rope_theta", 500000.0}};
  EXPECT_EQ(Parse(config)->ropes.at(0).theta, 500000.0);
}

TEST(ModelConfigTest, ReadsTheOtherFamilies) {
  json config = Llama();
  config["architectures"] = {"Qwen2ForCausalLM"};
  EXPECT_TRUE(Parse(config)->qkv_bias);
  config["architectures"] = {"Qwen3ForCausalLM"};
  config["head_dim"] = 16;
  EXPECT_TRUE(Parse(config)->qk_norm);
  EXPECT_EQ(Parse(config)->layer(0).head_dim, 16);
  config["architectures"] = {"MistralForCausalLM"};
  config["sliding_window"] = 32;
  EXPECT_EQ(Parse(config)->layer(0).window, 32);
  const json opt = {{"architectures", {"OPTForCausalLM"}},
                    {"hidden_size", 96},
                    {"num_hidden_layers", 2},
                    {"num_attention_heads", 4},
                    {"ffn_dim", 384},
                    {"vocab_size", 768},
                    {"activation_function", "relu"}};
  EXPECT_TRUE(Parse(opt)->ropes.empty());
  EXPECT_EQ(Parse(opt)->layer(0).rope, -1);
  EXPECT_EQ(Parse(opt)->position_offset, 2);
  EXPECT_TRUE(Parse(opt)->tie_embeddings);
  json other = opt;
  other["do_layer_norm_before"] = false;
  EXPECT_THAT(Error(other), HasSubstr("field \"do_layer_norm_before\" with the value false is not supported"));
  other = opt, other["do_layer_norm_before"] = true, other["word_embed_proj_dim"] = opt["hidden_size"];
  EXPECT_TRUE(Parse(other).ok()) << Error(other);
  other["word_embed_proj_dim"] = opt["hidden_size"].get<int>() / 2;
  EXPECT_THAT(Error(other), HasSubstr("\"word_embed_proj_dim\""));
}

TEST(ModelConfigTest, ReadsQuantisationAndRefusesOtherMethods) {
  json config = Llama();
  config["quantization"] = {{"group_size", 64}, {"bits", 4}};
  EXPECT_EQ(Parse(config)->quantization->bits, 4);
  config["quantization"] = {{"group_size", 64}, {"bits", 5}};
  EXPECT_THAT(Error(config), HasSubstr("quantisation to 5 bits is not supported; MLX affine groups of 3, 4, 6 or 8 bits"));
  config.erase("quantization");
  config["quantization_config"] = {{"quant_method", "gptq"}};
  EXPECT_THAT(Error(config), HasSubstr("quantisation method \"gptq\" is not supported"));
}

TEST(ModelConfigTest, NamesWhatIsUnsupported) {
  json config = Llama();
  config["architectures"] = {"MambaForCausalLM"};
  EXPECT_THAT(Error(config), HasSubstr("m/config.json: architecture \"MambaForCausalLM\" is not supported; LlamaForCausalLM, "));
  config = Llama();
  config["hidden_act"] = "quick_gelu";
  EXPECT_THAT(Error(config), HasSubstr("activation \"quick_gelu\" is not supported; silu, relu, fatrelu, gelu and gelu_pytorch_tanh are"));
  config["hidden_act"] = "gelu";
  EXPECT_EQ(Parse(config)->activation, Activation::kGelu);
}

json Qwen2() {
  json config = Llama();
  config["architectures"] = {"Qwen2ForCausalLM"};
  config["use_sliding_window"] = true;
  config["sliding_window"] = 8;
  config["max_window_layers"] = 0;
  return config;
}

TEST(ModelConfigTest, LayerTypesSayWhichLayersHaveAWindow) {
  json config = Qwen2();
  EXPECT_EQ(Parse(config)->layer(0).window, 8);
  config["max_window_layers"] = 2;
  EXPECT_EQ(Parse(config)->layer(0).window, 0);
  config["layer_types"] = {"sliding_attention", "sliding_attention"};
  EXPECT_EQ(Parse(config)->layer(0).window, 8) << "whatever max_window_layers says";
  config["layer_types"] = {"full_attention", "full_attention"};
  config["max_window_layers"] = 0;
  EXPECT_EQ(Parse(config)->layer(0).window, 0);
  config["layer_types"] = {"full_attention", "sliding_attention"};
  EXPECT_EQ(Parse(config)->layer(0).window, 0);
  EXPECT_EQ(Parse(config)->layer(1).window, 8);
  config["sliding_window"] = 128;
  EXPECT_EQ(Parse(config)->layer(0).window, 0) << "no position is so far away";
  config["layer_types"] = {"full_attention", "chunked_attention"};
  EXPECT_THAT(Error(config), HasSubstr("layer_types \"chunked_attention\" is not supported"));
  config["layer_types"] = {"full_attention"};
  EXPECT_THAT(Error(config), HasSubstr("field \"layer_types\" has 1 entries for 2 layers"));
  config["layer_types"] = {"full_attention", "full_attention", "sliding_attention"};
  EXPECT_EQ(Parse(config)->layer(0).window, 0) << "of a layer that the model has not";
}

TEST(ModelConfigTest, AWindowThatIsNotStatedIsThatOfTransformersClass) {
  json config = Qwen2();
  config["max_position_embeddings"] = 32768;
  config.erase("sliding_window");
  EXPECT_EQ(Parse(config)->layer(0).window, 4096);
  config["sliding_window"] = nullptr;
  EXPECT_EQ(Parse(config)->layer(0).window, 0);
  config["layer_types"] = {"sliding_attention", "sliding_attention"};
  EXPECT_THAT(Error(config), HasSubstr("without a sliding_window in use"));
  config["sliding_window"] = 8, config["use_sliding_window"] = false;
  EXPECT_THAT(Error(config), HasSubstr("without a sliding_window in use"));
  config = Qwen2();
  config["num_hidden_layers"] = 40;
  config.erase("max_window_layers");
  EXPECT_EQ(Parse(config)->layer(27).window, 0);
  EXPECT_EQ(Parse(config)->layer(28).window, 8) << "from layer 28 on";
  config = Llama();
  config["architectures"] = {"MistralForCausalLM"};
  config["max_position_embeddings"] = 32768;
  EXPECT_EQ(Parse(config)->layer(0).window, 4096);
  config["sliding_window"] = nullptr;
  EXPECT_EQ(Parse(config)->layer(0).window, 0);
  config["layer_types"] = {"full_attention", "sliding_attention"};
  EXPECT_THAT(Error(config), HasSubstr("without a sliding_window in use"));
  config["sliding_window"] = 8;
  EXPECT_THAT(Error(config), HasSubstr("layer_types with full_attention beside a sliding_window of 8"));
}

TEST(ModelConfigTest, OtherFieldsThatAreMissingAreThoseOfTransformersClass) {
  json config = Llama();
  config.erase("max_position_embeddings");
  EXPECT_EQ(Parse(config)->max_positions, 2048);
  config.erase("num_key_value_heads");
  EXPECT_EQ(Parse(config)->layer(0).num_kv_heads, 8) << "as many as heads";
  config["architectures"] = {"Qwen3ForCausalLM"};
  config["num_key_value_heads"] = nullptr;
  EXPECT_EQ(Parse(config)->max_positions, 32768);
  EXPECT_EQ(Parse(config)->layer(0).head_dim, 128);
  config["head_dim"] = nullptr;
  EXPECT_EQ(Parse(config)->layer(0).head_dim, 8);
  config["architectures"] = {"MistralForCausalLM"};
  config.erase("num_key_value_heads");
  config["num_attention_heads"] = 16;
  EXPECT_EQ(Parse(config)->layer(0).num_kv_heads, 8);
  EXPECT_EQ(Parse(config)->max_positions, 131072);
}

TEST(ModelConfigTest, RopeParametersByLayerTypeAreThoseOfTheLayersThatThereAre) {
  json config = Llama();
  const json a = {{"rope_type", "default"}, {"rope_theta", 500000.0}}, b = {{"rope_type", "default"}, {"rope_theta", 20000.0}};
  config["rope_parameters"] = {{"full_attention", a}, {"sliding_attention", b}};
  EXPECT_EQ(Parse(config)->ropes.at(0).theta, 500000.0);
  config["architectures"] = {"MistralForCausalLM"}, config["sliding_window"] = 8;
  EXPECT_EQ(Parse(config)->ropes.at(0).theta, 20000.0);
  config["rope_parameters"] = {{"full_attention", a}};
  EXPECT_THAT(Error(config), HasSubstr("rope_parameters by layer type without \"sliding_attention\""));
  config["rope_parameters"] = {{"full_attention", a}, {"rope_theta", 10000.0}};
  EXPECT_THAT(Error(config), HasSubstr("rope_parameters with objects among other values"));
  config = Qwen2();
  config["sliding_window"] = 128, config["layer_types"] = {"full_attention", "sliding_attention"};
  config["rope_parameters"] = {{"full_attention", a}, {"sliding_attention", b}};
  EXPECT_THAT(Error(config), HasSubstr("rope_parameters that differ by layer type"));
  config["rope_parameters"]["sliding_attention"] = a;
  EXPECT_EQ(Parse(config)->ropes.at(0).theta, 500000.0);
}

TEST(ModelConfigTest, AScalingBesideRopeParametersOfNoneIsApplied) {
  json config = Llama();
  config["rope_parameters"] = {{"rope_type", "default"}, {"rope_theta", 10000.0}};
  for (const char* key : {"type", "rope_type"}) {
    config["rope_scaling"] = {{key, "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 32}};
    ASSERT_TRUE(Parse(config).ok()) << Error(config);
    EXPECT_EQ(Parse(config)->ropes.at(0).type, RopeType::kYarn) << key;
    EXPECT_EQ(Parse(config)->ropes.at(0).factor, 4.0);
    config["rope_scaling"] = {{key, "linear"}, {"factor", 2.0}};
    EXPECT_EQ(Parse(config)->ropes.at(0).type, RopeType::kLinear) << key;
  }
  config["rope_parameters"]["partial_rotary_factor"] = 1.0;
  EXPECT_EQ(Parse(config)->ropes.at(0).type, RopeType::kLinear) << "which changes nothing";
  config["rope_scaling"] = json::object();
  config["rope_parameters"] = {{"rope_type", "default"}, {"rope_theta", 500000.0}};
  EXPECT_EQ(Parse(config)->ropes.at(0).theta, 500000.0) << "an empty one is none";
}

// transformers takes rope_scaling alone: what only the other says would be lost.
TEST(ModelConfigTest, RopeScalingMustSayWhatTheRopeParametersSayThatItReplaces) {
  json config = Llama();
  config["rope_parameters"] = {{"rope_type", "default"}, {"rope_theta", 500000.0}};
  for (const json& scaling : {json{{"rope_type", "default"}}, json{{"type", "linear"}, {"factor", 2.0}}}) {
    config["rope_scaling"] = scaling;
    EXPECT_THAT(Error(config), HasSubstr("rope_scaling replaces rope_parameters; write \"rope_theta\": 500000.0 in it"));
    config["rope_scaling"]["rope_theta"] = 500000.0;
    EXPECT_EQ(Parse(config)->ropes.at(0).theta, 500000.0);
  }
  config["rope_theta"] = 500000.0, config["rope_scaling"].erase("rope_theta");
  EXPECT_EQ(Parse(config)->ropes.at(0).theta, 500000.0) << "the field beside them counts for both";
  config["rope_parameters"] = {{"rope_type", "yarn"}, {"factor", 2.0}};
  EXPECT_THAT(Error(config), HasSubstr("rope_scaling beside a rope_parameters with another \"rope_type\""));
  config["rope_parameters"] = {{"type", "linear"}, {"factor", 4.0}};
  EXPECT_THAT(Error(config), HasSubstr("rope_scaling beside a rope_parameters with another \"factor\""));
  config["rope_parameters"]["factor"] = 2.0;
  EXPECT_EQ(Parse(config)->ropes.at(0).type, RopeType::kLinear);
}

TEST(ModelConfigTest, TheTypeOfAScalingIsStatedOnceOrTwiceTheSame) {
  json config = Llama();
  for (const char* field : {"rope_scaling", "rope_parameters"}) {
    config = Llama();
    config[field] = {{"type", "linear"}, {"rope_type", "yarn"}, {"factor", 4.0}};
    EXPECT_THAT(Error(config), HasSubstr(std::string(field) + ": \"type\" \"linear\" beside \"rope_type\" \"yarn\" is not supported"));
    config[field]["type"] = "yarn";
    EXPECT_EQ(Parse(config)->ropes.at(0).type, RopeType::kYarn);
    config[field]["type"] = "";
    EXPECT_EQ(Parse(config)->ropes.at(0).type, RopeType::kYarn);
    config[field]["type"] = "yarn";
    config[field]["rope_type"] = nullptr;
    EXPECT_EQ(Parse(config)->ropes.at(0).type, RopeType::kYarn);
  }
}

TEST(ModelConfigTest, NumbersOfAScalingNeedItsType) {
  json config = Llama();
  for (const json& type : {json(nullptr), json("")}) {
    config["rope_scaling"] = {{"type", type}, {"factor", 4.0}};
    EXPECT_THAT(Error(config), HasSubstr("rope_scaling: states \"factor\", but no \"rope_type\" says which scaling the field is for"));
  }
  config["rope_scaling"] = nullptr;
  for (const char* number : {"factor", "beta_fast", "low_freq_factor", "original_max_position_embeddings"}) {
    config["rope_parameters"] = {{"rope_theta", 500000.0}, {number, 4}};
    EXPECT_THAT(Error(config), HasSubstr("rope_parameters: states \"" + std::string(number) + "\""));
  }
  config["rope_parameters"] = {{"rope_theta", 500000.0}, {"factor", nullptr}};
  EXPECT_EQ(Parse(config)->ropes.at(0).type, RopeType::kDefault);
}

TEST(ModelConfigTest, YarnWithoutAFactorIsStretchedByItsPositions) {
  json config = Llama();
  for (const json& factor : {json(nullptr), json()}) {
    config["rope_scaling"] = {{"rope_type", "yarn"}, {"factor", factor}, {"original_max_position_embeddings", 32}};
    ASSERT_TRUE(Parse(config).ok()) << Error(config);
    EXPECT_EQ(Parse(config)->ropes.at(0).factor, 4.0);
    EXPECT_EQ(Parse(config)->max_positions, 128);
  }
  config["rope_scaling"].erase("original_max_position_embeddings");
  config["original_max_position_embeddings"] = 64;
  EXPECT_EQ(Parse(config)->ropes.at(0).factor, 2.0) << "where Phi's files have it";
  config["rope_scaling"] = {{"rope_type", "linear"}};
  EXPECT_THAT(Error(config), HasSubstr("rope_scaling: field \"factor\" is missing"));
}

// Its correction range would be no number.
TEST(ModelConfigTest, YarnNeedsABaseAboveOne) {
  json config = Llama();
  config["rope_scaling"] = {{"rope_type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 32}};
  config["rope_theta"] = 1.0;
  EXPECT_THAT(Error(config), HasSubstr("rope_theta must be above 1"));
  config["rope_theta"] = 1.5;
  EXPECT_TRUE(Parse(config).ok()) << Error(config);
}

TEST(ModelConfigTest, AScalingReachesPositionsBeyondThoseThatAreStated) {
  json config = Llama();
  for (const char* type : {"yarn", "linear", "dynamic"}) {
    config["rope_scaling"] = {{"type", type}, {"factor", 4.0}};
    EXPECT_EQ(Parse(config)->max_positions, 512) << type;
    EXPECT_EQ(Parse(config)->ropes.at(0).original_max_position, 128) << type;
    config["rope_scaling"]["original_max_position_embeddings"] = 32;
    const bool dynamic = std::string_view(type) == "dynamic";
    EXPECT_EQ(Parse(config)->max_positions, dynamic ? 512 : 128) << "of dynamic transformers reads max_position_embeddings alone";
  }
  config["rope_scaling"] = {{"type", "yarn"}, {"factor", 1e6}};
  EXPECT_EQ(Parse(config)->max_positions, 1 << 24) << "bounded";
  config["rope_scaling"] = {
      {"type", "llama3"}, {"factor", 32.0}, {"low_freq_factor", 1.0}, {"high_freq_factor", 4.0}, {"original_max_position_embeddings", 64}};
  EXPECT_EQ(Parse(config)->max_positions, 128) << "llama3 states what it reaches";
}

TEST(ModelConfigTest, NamesOfArchitecturesMayBeSpelledInOtherCasesAndBeSeveral) {
  json config = Llama();
  config["architectures"] = {"LLaMAForCausalLM"};
  EXPECT_EQ(Parse(config)->model_type, "llama");
  EXPECT_EQ(Parse(config)->architecture, "LlamaForCausalLM");
  config["architectures"] = {"Other", "QWEN2ForCausalLM"};
  EXPECT_EQ(Parse(config)->model_type, "qwen2");
  config["model_type"] = "mistral";
  EXPECT_EQ(Parse(config)->model_type, "mistral") << "as transformers chooses the class";
  for (const json& none : {json(nullptr), json::array(), json("x")}) {
    config["architectures"] = none;
    EXPECT_EQ(Parse(config)->model_type, "mistral");
  }
  config["architectures"] = {"LlamaBidirectionalModel"};
  EXPECT_THAT(Error(config), HasSubstr("architecture \"LlamaBidirectionalModel\" is not supported"));
}

TEST(TokenIdsTest, OneOrSeveralOrNone) {
  const auto ids = [](const json& value) { return *ParseTokenIds({{"eos_token_id", value}}, "eos_token_id", "f"); };
  EXPECT_THAT(ids(7), ElementsAre(7));
  EXPECT_THAT(ids({7, 0, (1 << 24) - 1}), ElementsAre(7, 0, (1 << 24) - 1));
  for (const json& none : {json(nullptr), json(-1), json(json::array()), json({-1})}) EXPECT_THAT(ids(none), ElementsAre()) << none;
  EXPECT_THAT(ids({-1, 3}), ElementsAre(3));
  for (const json& wrong : {json("7"), json(7.0), json(true), json(-2), json(1 << 24), json(UINT64_MAX), json({7, nullptr}), json({{7}})}) {
    EXPECT_EQ(ParseTokenIds({{"eos_token_id", wrong}}, "eos_token_id", "f").status().message(),
              "f: field \"eos_token_id\" is not a token id or a list of them");
  }
}

TEST(ModelConfigTest, AModelTypeOfAnotherFamilyIsNoneOfTheArchitectureBesideIt) {
  json config = Llama();
  for (const char* type : {"qwen2_moe", "dbrx", "llama4_text", "gemma"}) {
    config["model_type"] = type;
    EXPECT_THAT(Error(config), HasSubstr("model_type \"" + std::string(type) + "\" is not supported; LlamaForCausalLM, ")) << type;
  }
  for (const json& none : {json(nullptr), json(""), json("llama"), json("LLaMA")}) {
    config["model_type"] = none;
    EXPECT_EQ(Parse(config)->model_type, "llama");
  }
}

TEST(ModelConfigTest, WhatPythonWritesForInfinityIsPassedOverWhereNobodyReadsIt) {
  const std::string text = Llama().dump();
  const auto with = [&](const std::string& field) {
    return ParseModelConfig(text.substr(0, text.size() - 1) + ", " + field + "}", "config.json").status();
  };
  EXPECT_TRUE(with("\"time_step_limit\": [0.0, Infinity]").ok());
  EXPECT_TRUE(with("\"router_aux_loss_coef\": NaN").ok());
  EXPECT_THAT(std::string(with("\"rope_theta\": Infinity").message()), HasSubstr("field \"rope_theta\" is not a number"));
  EXPECT_THAT(std::string(with("\"residual_multiplier\": NaN").message()), HasSubstr("residual_multiplier"));
}

TEST(ModelConfigTest, FieldsOfOtherComputationsAreRefusedByNameUnlessTheyChangeNothing) {
  const std::vector<std::tuple<std::string, json, json>> fields = {// name, changes nothing, changes something
                                                                   {"partial_rotary_factor", 1.0, 0.5},
                                                                   {"attn_logit_softcapping", nullptr, 50.0},
                                                                   {"final_logit_softcapping", 0, 30.0},
                                                                   {"clip_qkv", nullptr, 8.0},
                                                                   {"use_qk_norm", false, true},
                                                                   {"qk_layernorm", false, true},
                                                                   {"residual_multiplier", 1, 0.22},
                                                                   {"embedding_multiplier", 1.0, 12.0},
                                                                   {"logits_scaling", 1.0, 8.0},
                                                                   {"logit_scale", nullptr, 0.0625},
                                                                   {"attention_out_multiplier", 1.0, 0.5},
                                                                   {"scale_embedding", false, true},
                                                                   {"attn_output_gate", false, true},
                                                                   {"parallel_residual", false, true},
                                                                   {"rotary_dim", 8, 4},
                                                                   {"use_rope", true, false},
                                                                   {"attention_multiplier", 0.35355339059, 0.0078125},
                                                                   {"query_pre_attn_scalar", 8, 256},
                                                                   {"no_rope_layers", {1, 1}, {1, 0}},
                                                                   {"no_rope_layer_interval", nullptr, 4},
                                                                   {"attention_chunk_size", nullptr, 8192},
                                                                   {"num_local_experts", 0, 8},
                                                                   {"rope_interleaved", false, true},
                                                                   {"use_alibi", false, true},
                                                                   {"position_embedding_type", "rope", "alibi"},
                                                                   {"is_causal", true, false},
                                                                   {"use_bidirectional_attention", nullptr, true},
                                                                   {"use_parallel_residual", false, true},
                                                                   {"hidden_activation", "silu", "gelu_pytorch_tanh"},
                                                                   {"pruned_heads", json::object(), {{"0", {1}}}},
                                                                   {"bias", false, true},
                                                                   {"compression_config", nullptr, {{"quant_method", "x"}}}};
  for (const auto& [name, neutral, other] : fields) {
    json config = Llama();
    config[name] = neutral;
    EXPECT_TRUE(Parse(config).ok()) << Error(config);
    config[name] = other;
    EXPECT_THAT(Error(config), AllOf(HasSubstr("m/config.json: "), HasSubstr(name), HasSubstr("is not supported")));
  }
}

TEST(ModelConfigTest, BiasesThatAClassDoesNotHaveAreRefused) {
  json config = Llama();
  config["mlp_bias"] = config["attention_bias"] = true;
  EXPECT_TRUE(Parse(config)->mlp_bias);
  config["architectures"] = {"MistralForCausalLM"};
  EXPECT_THAT(Error(config), HasSubstr("\"mlp_bias\" with the value true is not supported"));
  config["mlp_bias"] = false;
  EXPECT_THAT(Error(config), HasSubstr("\"attention_bias\" with the value true is not supported"));
  config["architectures"] = {"Qwen2ForCausalLM"};
  EXPECT_TRUE(Parse(config).ok()) << "which always has those of q, k and v";
}

TEST(ModelConfigTest, PartialRotationAndForeignScalingsInTheRopeAreRefused) {
  json config = Llama();
  config["rope_parameters"] = {{"rope_type", "default"}, {"partial_rotary_factor", 0.5}};
  EXPECT_THAT(Error(config), HasSubstr("rope_parameters: partial_rotary_factor 0.5 is not supported"));
  config["rope_parameters"] = {{"rope_type", "default"}, {"partial_rotary_factor", 1.0}};
  EXPECT_TRUE(Parse(config).ok());
  config["rope_parameters"] = {{"rope_type", "dynamic"}, {"factor", 1.0}, {"alpha", 1000.0}};
  EXPECT_THAT(Error(config), HasSubstr("\"alpha\" is not supported"));
}

TEST(ModelConfigTest, ReadsMxfp4AndFp8) {
  json config = Llama();
  config["quantization"] = {{"group_size", 32}, {"bits", 4}, {"mode", "mxfp4"}, {"lm_head", {{"group_size", 64}, {"bits", 8}}}};
  EXPECT_EQ(Parse(config)->quantization, kMxfp4);
  EXPECT_EQ(Parse(config)->quantization_of.at("lm_head")->code, WeightCode::kAffine);
  config["quantization"]["bits"] = 8;
  EXPECT_THAT(Error(config), HasSubstr("quantisation mode \"mxfp4\" to 8 bits in groups of 32 is not supported"));
  config["quantization"] = {{"group_size", 64}, {"bits", 4}, {"lm_head", {{"group_size", 64}, {"bits", 2}}}};
  EXPECT_THAT(Error(config), HasSubstr("quantization: lm_head: quantisation to 2 bits is not supported"));
  config["quantization"] = {{"group_size", 32}, {"bits", 8}, {"mode", "mxfp8"}};
  EXPECT_THAT(Error(config), HasSubstr("quantisation mode \"mxfp8\""));
  config.erase("quantization");
  config["quantization_config"] = {{"quant_method", "mxfp4"}, {"modules_to_not_convert", {"lm_head"}}};
  EXPECT_EQ(Parse(config)->quantization, kMxfp4);
  EXPECT_EQ(Parse(config)->quantization_method, "mxfp4");
  config["quantization_config"] = {{"quant_method", "fp8"},
                                   {"fmt", "e4m3"},
                                   {"activation_scheme", "dynamic"},
                                   {"weight_block_size", {128, 128}},
                                   {"modules_to_not_convert", {"lm_head", "model.layers.0.mlp"}}};
  EXPECT_EQ(Parse(config)->quantization, kFp8);
  EXPECT_EQ(Parse(config)->quantization_of.size(), 2u);
  config["quantization_config"]["weight_block_size"] = {64, 64};
  EXPECT_THAT(Error(config), HasSubstr("quantisation method \"fp8\" with another weight_block_size than [128, 128] is not supported"));
  config["quantization_config"]["weight_block_size"] = "128";
  EXPECT_FALSE(Parse(config).ok());
  config["quantization_config"] = {{"quant_method", "fp8"}, {"fmt", "float8_e4m3fn"}};  // MiniMax-M2
  EXPECT_EQ(Parse(config)->quantization->code, WeightCode::kFp8);
  config["quantization_config"] = {{"quant_method", "fp8"}, {"fmt", "e5m2"}};
  EXPECT_THAT(Error(config), HasSubstr("quantisation method \"fp8\" of format \"e5m2\""));
}

TEST(ModelConfigTest, SaysWhetherFp8HasScalesOfInputsAndOfKv) {
  json config = Llama();
  json& method = config["quantization_config"];
  method = {{"quant_method", "fp8"}, {"activation_scheme", "dynamic"}, {"kv_cache_scheme", nullptr}};
  EXPECT_FALSE(Parse(config)->has_input_scales);
  EXPECT_FALSE(Parse(config)->has_kv_scales);
  method["activation_scheme"] = "static";
  method["kv_cache_scheme"] = "static";
  EXPECT_TRUE(Parse(config)->has_input_scales);
  EXPECT_TRUE(Parse(config)->has_kv_scales);
  method["activation_scheme"] = 4;
  EXPECT_FALSE(Parse(config).ok());
  const json group = {{"weights", {{"num_bits", 8}, {"type", "float"}, {"strategy", "tensor"}}}};
  method = {{"quant_method", "compressed-tensors"}, {"config_groups", {{"group_0", group}}}};
  json& inputs = method["config_groups"]["group_0"]["input_activations"];
  for (const auto& [stated, expected] : std::vector<std::pair<json, bool>>{
           {nullptr, false}, {{{"dynamic", true}}, false}, {{{"dynamic", false}}, true}, {json::object(), true}, {"none", false}}) {
    inputs = stated;
    EXPECT_EQ(Parse(config)->has_input_scales, expected) << stated;
  }
  EXPECT_FALSE(Parse(config)->has_kv_scales);
  method["kv_cache_scheme"] = {{"num_bits", 8}, {"type", "float"}};
  EXPECT_TRUE(Parse(config)->has_kv_scales);
}

TEST(ModelConfigTest, ReadsCompressedTensorsIfTheyAreFloatsOf8Bits) {
  json config = Llama();
  const json weights = {{"num_bits", 8}, {"type", "float"}, {"strategy", "channel"}, {"symmetric", true}};
  const json method = {{"quant_method", "compressed-tensors"},
                       {"config_groups", {{"group_0", {{"targets", {"Linear"}}, {"weights", weights}}}}},
                       {"ignore", {"lm_head"}}};
  config["quantization_config"] = method;
  ASSERT_TRUE(Parse(config).ok()) << Error(config);
  EXPECT_EQ(Parse(config)->quantization->scales, ScaleShape::kRows);
  EXPECT_FALSE(Parse(config)->quantization_of.at("lm_head").has_value());
  for (const auto& [key, value] : std::vector<std::pair<std::string, json>>{
           {"num_bits", 4}, {"type", "int"}, {"strategy", "group"}, {"strategy", "block"}, {"symmetric", false}}) {
    config["quantization_config"] = method;
    config["quantization_config"]["config_groups"]["group_0"]["weights"][key] = value;
    EXPECT_THAT(Error(config), HasSubstr("quantisation method \"compressed-tensors\" with")) << key;
  }
  for (const json& groups : {json(), json(5), json{{"group_0", 1}}, json{{"group_0", {{"weights", 3}}}}}) {
    config["quantization_config"] = {{"quant_method", "compressed-tensors"}, {"config_groups", groups}};
    EXPECT_FALSE(Parse(config).ok()) << groups;
  }
}

TEST(ModelConfigTest, AQuantisationMethodBesideMlxGroupsIsRefused) {
  json config = Llama();
  config["quantization"] = config["quantization_config"] = {{"group_size", 64}, {"bits", 4}};
  EXPECT_TRUE(Parse(config).ok()) << "MLX writes both";
  config["quantization_config"] = {{"quant_method", "awq"}, {"bits", 4}};
  EXPECT_THAT(Error(config), HasSubstr("quantisation method \"awq\" is not supported"));
}

TEST(ModelConfigTest, RefusesLyingNumbers) {
  for (const auto& [key, value] : std::vector<std::pair<std::string, json>>{{"hidden_size", -1},
                                                                            {"hidden_size", 1e300},
                                                                            {"hidden_size", "64"},
                                                                            {"num_hidden_layers", 0},
                                                                            {"num_hidden_layers", 1000000000},
                                                                            {"num_attention_heads", 0},
                                                                            {"num_key_value_heads", 3},
                                                                            {"num_key_value_heads", 16},
                                                                            {"head_dim", 7},
                                                                            {"vocab_size", 18446744073709551615ull},
                                                                            {"rope_theta", 0},
                                                                            {"rms_norm_eps", -1},
                                                                            {"rope_scaling", 5},
                                                                            {"quantization", "yes"},
                                                                            {"eos_token_id", "x"}}) {
    json config = Llama();
    config[key] = value;
    EXPECT_FALSE(Parse(config).ok()) << key << " = " << value;
    EXPECT_THAT(Error(config), HasSubstr("m/config.json: "));
  }
  json config = Llama();
  config["rms_norm_eps"] = nullptr;
  EXPECT_THAT(Error(config), HasSubstr("field \"rms_norm_eps\" is null"));
  config["rms_norm_eps"] = 10;
  EXPECT_EQ(Parse(config)->norm_eps, 10) << "large, but defined";
  EXPECT_FALSE(ParseModelConfig("", "c").ok());
  EXPECT_FALSE(ParseModelConfig("[1]", "c").ok());
  EXPECT_FALSE(ParseModelConfig("{\"architectures\": [", "c").ok());
}

TEST(ModelConfigTest, RefusesTextsBeyondAnyBound) {
  const auto error = [](const std::string& text) { return std::string(ParseModelConfig(text, "config.json").status().message()); };
  EXPECT_THAT(error("{\"rope_scaling\": " + std::string(100000, '[')), HasSubstr("config.json: nests more than 64 levels"));
  EXPECT_THAT(error(std::string((16 << 20) + 1, ' ')), HasSubstr("config.json: is larger than"));
}

TEST(ModelConfigTest, ReadsOneOrSeveralEndTokens) {
  json config = Llama();
  config["eos_token_id"] = {128001, 128009};
  config["bos_token_id"] = 128000;
  EXPECT_THAT(Parse(config)->eos_token_ids, ElementsAre(128001, 128009));
  EXPECT_EQ(Parse(config)->bos_token_id, 128000);
}

TEST(ModelConfigTest, MatricesMayHaveAPackingOfTheirOwn) {
  json config = Llama();
  config["quantization"] = {{"group_size", 64}, {"bits", 4}, {"lm_head", {{"group_size", 32}, {"bits", 8}}}, {"model.embed_tokens", false}};
  ASSERT_TRUE(Parse(config).ok()) << Error(config);
  EXPECT_EQ(Parse(config)->quantization->bits, 4);
  EXPECT_EQ(Parse(config)->quantization_of.at("lm_head")->bits, 8);
  EXPECT_FALSE(Parse(config)->quantization_of.at("model.embed_tokens").has_value());
  config["quantization"]["lm_head"]["bits"] = 5;
  EXPECT_THAT(Error(config), HasSubstr("quantisation to 5 bits is not supported"));
  config["quantization"]["lm_head"] = {{"bits", 8}};
  EXPECT_THAT(Error(config), HasSubstr("quantization: lm_head: field \"group_size\" is missing"));
}

}  // namespace
}  // namespace lime
