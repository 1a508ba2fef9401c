#include "planner/plan/model_config.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace lime {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

json Llama() {
  return {{"architectures", {"LlamaForCausalLM"}},
          {"hidden_size", 64},
          {"num_hidden_layers", 2},
          {"num_attention_heads", 8},
          {"num_key_value_heads", 4},
          {"intermediate_size", 172},
          {"vocab_size", 512},
          {"max_position_embeddings", 128}};
}

absl::StatusOr<ModelConfig> Parse(const json& config) {
  return ParseModelConfig(config.dump(), "m/config.json");
}

std::string Error(const json& config) {
  return std::string(Parse(config).status().message());
}

TEST(ModelConfigTest, ReadsLlamaWithDefaults) {
  const ModelConfig config = *Parse(Llama());
  EXPECT_EQ(config.family, ModelFamily::kLlama);
  EXPECT_EQ(config.head_dim, 8);
  EXPECT_EQ(config.num_kv_heads, 4);
  EXPECT_FALSE(config.tie_embeddings);
  EXPECT_EQ(config.rope.type, RopeType::kDefault);
  EXPECT_EQ(config.rope.theta, 10000.0);
}

TEST(ModelConfigTest, ReadsEveryRopeType) {
  json config = Llama();
  config["rope_scaling"] = {{"rope_type", "llama3"},
                            {"factor", 8.0},
                            {"low_freq_factor", 1.0},
                            {"high_freq_factor", 4.0},
                            {"original_max_position_embeddings", 8192}};
  EXPECT_EQ(Parse(config)->rope.type, RopeType::kLlama3);
  EXPECT_EQ(Parse(config)->rope.original_max_position, 8192);
  config["rope_scaling"] = {{"type", "linear"}, {"factor", 2.0}};
  EXPECT_EQ(Parse(config)->rope.type, RopeType::kLinear);
  config["rope_scaling"] = {{"type", "dynamic"}, {"factor", 2.0}};
  EXPECT_EQ(Parse(config)->rope.type, RopeType::kDynamic);
  config["rope_scaling"] = {{"type", "yarn"}, {"factor", 4.0}};
  EXPECT_NEAR(Parse(config)->rope.attention_factor, 0.1 * std::log(4.0) + 1.0, 1e-12);
  config["rope_scaling"] = {{"type", "longrope"}, {"factor", 4.0}};
  EXPECT_THAT(Error(config), HasSubstr("\"longrope\" is not supported; default, linear, dynamic, llama3 and yarn"));
}

TEST(ModelConfigTest, ReadsTheRopeParametersOfNewerFiles) {
  json config = Llama();
  config["rope_parameters"] = {{"rope_type", "default"}, {"rope_theta", 500000.0}};
  EXPECT_EQ(Parse(config)->rope.theta, 500000.0);
}

TEST(ModelConfigTest, ReadsTheOtherFamilies) {
  json config = Llama();
  config["architectures"] = {"Qwen2ForCausalLM"};
  EXPECT_TRUE(Parse(config)->qkv_bias);
  config["architectures"] = {"Qwen3ForCausalLM"};
  config["head_dim"] = 16;
  EXPECT_TRUE(Parse(config)->qk_norm);
  EXPECT_EQ(Parse(config)->head_dim, 16);
  config["architectures"] = {"MistralForCausalLM"};
  config["sliding_window"] = 32;
  EXPECT_EQ(Parse(config)->sliding_window, 32);
  const json opt = {{"architectures", {"OPTForCausalLM"}},
                    {"hidden_size", 96},
                    {"num_hidden_layers", 2},
                    {"num_attention_heads", 4},
                    {"ffn_dim", 384},
                    {"vocab_size", 768},
                    {"activation_function", "relu"}};
  EXPECT_EQ(Parse(opt)->rope.type, RopeType::kNone);
  EXPECT_EQ(Parse(opt)->position_offset, 2);
  EXPECT_TRUE(Parse(opt)->tie_embeddings);
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
  config["hidden_act"] = "gelu";
  EXPECT_THAT(Error(config), HasSubstr("activation \"gelu\" is not supported; silu and relu"));
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
  EXPECT_FALSE(ParseModelConfig("", "c").ok());
  EXPECT_FALSE(ParseModelConfig("[1]", "c").ok());
  EXPECT_FALSE(ParseModelConfig("{\"architectures\": [", "c").ok());
}

TEST(ModelConfigTest, RefusesTextsBeyondAnyBound) {
  const auto error = [](const std::string& text) { return std::string(ParseModelConfig(text, "config.json").status().message()); };
  EXPECT_THAT(error("{\"rope_scaling\": " + std::string(100000, '[')), HasSubstr("config.json: nests more than 64 levels"));
  EXPECT_THAT(error(std::string((16 << 20) + 1, ' ')), HasSubstr("config.json: is larger than"));
}

TEST(ModelConfigTest, TakesOneOrSeveralEndTokens) {
  json config = Llama();
  config["eos_token_id"] = {128001, 128009};
  config["bos_token_id"] = 128000;
  EXPECT_THAT(Parse(config)->eos_token_ids, ElementsAre(128001, 128009));
  EXPECT_EQ(Parse(config)->bos_token_id, 128000);
}

}  // namespace
}  // namespace lime
