// A small config.json, and what reading one says.
#pragma once

#include <string>

#include "nlohmann/json.hpp"
#include "planner/plan/model/model_config.h"

namespace lime {

inline nlohmann::json Llama() {
  return {{"architectures", {"LlamaForCausalLM"}},
          {"hidden_size", 64},
          {"num_hidden_layers", 2},
          {"num_attention_heads", 8},
          {"num_key_value_heads", 4},
          {"intermediate_size", 172},
          {"vocab_size", 512},
          {"max_position_embeddings", 128}};
}

inline absl::StatusOr<ModelConfig> Parse(const nlohmann::json& config) {
  return ParseModelConfig(config.dump(), "m/config.json");
}

inline std::string Error(const nlohmann::json& config) {
  return std::string(Parse(config).status().message());
}

}  // namespace lime
