// Makes random checkpoints of any family, geometry and dtype from a seed, for tests and for
// benchmarks of models that cannot be downloaded.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>

#include "planner/base/bytes.h"
#include "planner/base/dtype.h"
#include "planner/base/status.h"
#include "planner/plan/model/model_config.h"
#include "testbed/make_model/planted_statistics.h"

namespace lime {

// The geometry of a model. The family fixes what is not here (biases of Qwen2, norms of Qwen3, ...).
// The defaults are a tiny model of any family.
struct ModelShape {
  std::string family = "llama";  // ModelConfig::model_type
  int64_t num_layers = 2;
  int64_t hidden_size = 64;
  int64_t num_heads = 4;
  int64_t num_kv_heads = 2;
  int64_t head_dim = 0;  // 0: hidden_size / num_heads
  int64_t intermediate_size = 160;
  int64_t vocab_size = 320;
  int64_t max_positions = 512;
  RopeConfig rope = {};  // `dims` is not used
  Activation activation = Activation::kSilu;
  int64_t sliding_window = 0;   // families with a window; 0: none
  bool tie_embeddings = false;  // the head uses the embedding tensor
  bool qkv_bias = false;        // families with the field attention_bias: biases of q, k, v and o
  bool mlp_bias = false;        // families with the field mlp_bias
  // How matrices are packed. A family that is published in mxfp4 alone (gpt-oss) is so without it.
  std::optional<Quantization> quantization;
  // Families with linear attention or with windows on most layers: each so many-th layer attends to
  // all positions.
  int64_t full_attention_interval = 4;
  LinearAttentionConfig linear_attention = {.key_heads = 2, .value_heads = 4, .key_dim = 16, .value_dim = 16, .conv_width = 4};
  // Families with these factors.
  std::map<std::string, double> factors = {
      {"embedding_multiplier", 2}, {"residual_multiplier", 0.5}, {"attention_multiplier", 0.125}, {"logits_scaling", 1.5}};
  // Families with experts: of their ExpertsConfig, the sizes. The shared expert is as large as so many
  // experts; families that have none ignore it.
  int64_t num_experts = 8;
  int64_t experts_per_token = 2;
  int64_t expert_intermediate_size = 64;
  int64_t shared_experts = 1;
  int64_t first_dense_layers = 0;      // families that may have them
  double partial_rotation = 0.5;       // families in which part of a head rotates
  int64_t no_rope_layer_interval = 2;  // families in which each so many-th layer does not rotate
  // Of "quantization_config": "fp8" or "compressed-tensors" of FP8, which has the first one unless
  // each row has a scale. Empty for the groups of MLX.
  std::string quantization_method = {};
};

struct MakeModelOptions {
  ModelShape config = {};
  DType dtype = DType::kBF16;       // of dense weights, scales, norms and biases
  std::optional<DType> norm_dtype;  // of norms, if it differs from `dtype`
  uint64_t seed = 1;
  int shards = 1;         // files of weights; with more than 1 also an index
  bool tokenizer = true;  // a byte-level tokenizer.json; needs a vocabulary of at least 258
  // Of a model in FP8: the same values in F32, without a quantisation. Each weight is the exact product
  // of its code and its scale, and each other value that of `dtype`.
  bool widened = false;
  // Families with experts: text that is sampled makes routes as recorded ones (planted_routes.h).
  bool planted_routes = false;
  // OPT: neurons are as active as those of trained models (planted_neurons.h).
  bool planted_neurons = false;
};

// Writes the checkpoint into `dir`, and makes that folder if it is missing. config.json is written
// last, so that an interrupted folder is no model. The same options give the same bytes on every
// machine. `progress` receives the number of bytes written since its last call, on any thread.
absl::Status MakeModel(const MakeModelOptions& options, const std::string& dir, const std::function<void(Bytes)>& progress = nullptr);

// What the neurons of such a model with planted_neurons do (planted_statistics.h). Takes seconds.
absl::StatusOr<PlantedStatistics> MeasurePlantedNeurons(const MakeModelOptions& options);

// The text of config.json for these options. REQUIRES: the family is one of Families()
std::string ConfigJson(const MakeModelOptions& options);
// A byte-level tokenizer.json: token i is byte i, then <s> (256) and </s> (257), then words that
// occur in no text.
std::string ByteTokenizerJson(int64_t vocab_size);

inline constexpr int32_t kByteTokenizerBos = 256;
inline constexpr int32_t kByteTokenizerEos = 257;

// "default", "linear", "dynamic", "llama3", "yarn", "longrope".
absl::StatusOr<RopeType> ParseRopeTypeName(std::string_view name);

}  // namespace lime
