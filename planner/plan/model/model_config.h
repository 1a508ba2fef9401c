// The geometry of a model, read from a Hugging Face config.json. Pure: converts text to checked
// numbers.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "planner/base/status.h"

namespace lime {

enum class ModelFamily {
  kLlama,    // LlamaForCausalLM: Llama 2, 3.x
  kMistral,  // MistralForCausalLM: Llama with a sliding window
  kQwen2,    // Qwen2ForCausalLM: biases on q, k, v
  kQwen3,    // Qwen3ForCausalLM: RMSNorm on every head of q and k
  kOpt,      // OPTForCausalLM: LayerNorm, learned positions, biases, two-matrix MLP
};

enum class Activation {
  kSilu,  // x * sigmoid(x)
  kRelu,  // max(x, 0)
};

enum class RopeType {
  kNone,     // no rotary embedding (learned positions)
  kDefault,  // no scaling
  kLinear,   // positions divided by factor
  kDynamic,  // NTK-aware: the base grows with the position beyond original_max_position
  kLlama3,   // low frequencies divided by factor, with a smooth transition
  kYarn,     // NTK by parts, attention scaled
};

struct RopeConfig {
  RopeType type = RopeType::kDefault;
  double theta = 10000.0;
  double factor = 1.0;
  double low_freq_factor = 1.0;       // llama3
  double high_freq_factor = 4.0;      // llama3
  double beta_fast = 32.0;            // yarn
  double beta_slow = 1.0;             // yarn
  double attention_factor = 1.0;      // yarn: multiplies cos and sin
  bool truncate = true;               // yarn: correction range rounded to whole dimensions
  int64_t original_max_position = 0;  // positions of the training, before scaling
};

struct Quantization {
  int bits = 0;        // 3, 4, 6 or 8
  int group_size = 0;  // 32, 64 or 128 weights share one scale and bias
};

struct ModelConfig {
  ModelFamily family = ModelFamily::kLlama;
  std::string architecture;  // as config.json spells it
  int64_t num_layers = 0;
  int64_t hidden_size = 0;
  int64_t num_heads = 0;
  int64_t num_kv_heads = 0;  // divides num_heads
  int64_t head_dim = 0;      // even if RoPE is used
  int64_t intermediate_size = 0;
  int64_t vocab_size = 0;
  int64_t max_positions = 0;  // longest context that the model states
  double norm_eps = 1e-5;
  Activation activation = Activation::kSilu;
  RopeConfig rope;
  int64_t sliding_window = 0;   // positions that a token attends to, itself included; 0: all
  bool tie_embeddings = false;  // the head uses the embedding tensor
  bool qkv_bias = false;
  bool attention_output_bias = false;
  bool mlp_bias = false;
  bool qk_norm = false;         // RMSNorm over head_dim of q and k, before RoPE
  int64_t position_offset = 0;  // learned positions: the row of position 0 (2 in OPT)
  bool norm_affine = true;      // LayerNorm has weight and bias
  bool final_norm = true;
  std::optional<Quantization> quantization;  // default of the packed layers
  std::optional<int32_t> bos_token_id;
  std::vector<int32_t> eos_token_ids;

  bool learned_positions() const { return family == ModelFamily::kOpt; }
  bool gated_mlp() const { return family != ModelFamily::kOpt; }
};

// Reads and checks config.json. Errors begin with `name`, the path of the file. For an unknown
// architecture, activation, RoPE type or quantisation method, the error lists the supported ones.
// Bounds on all numbers prevent overflow of later sizes.
absl::StatusOr<ModelConfig> ParseModelConfig(std::string_view json, std::string_view name);

}  // namespace lime
