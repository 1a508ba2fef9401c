// The geometry of a model, read from a Hugging Face config.json. Pure: converts text to checked
// numbers.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "planner/base/status.h"
#include "planner/plan/model/matrix_format.h"

namespace lime {

enum class Activation {
  kSilu,           // x * sigmoid(x)
  kRelu,           // max(x, 0)
  kGelu,           // x * (1 + erf(x / sqrt(2))) / 2
  kGeluTanh,       // its approximation with tanh
  kClampedSwiglu,  // gate and up clamped: (up + 1) * gate * sigmoid(1.702 * gate) (gpt-oss)
  kFatRelu,        // x if it is above a threshold, else 0 (ProSparse)
  kDoubleRelu,     // of gate and up: max(gate, 0) * max(up, 0), dReLU (TurboSparse)
};

// Whether it makes exact zeros, of which no product needs to be computed.
constexpr bool MakesZeros(Activation activation) {
  return activation == Activation::kRelu || activation == Activation::kFatRelu || activation == Activation::kDoubleRelu;
}

enum class NormKind : uint8_t { kRms, kLayer };

enum class RopeType {
  kDefault,       // no scaling
  kLinear,        // positions divided by factor
  kDynamic,       // NTK-aware: the base grows with the position beyond original_max_position
  kLlama3,        // low frequencies divided by factor, with a smooth transition
  kYarn,          // NTK by parts, attention scaled
  kProportional,  // exponents over the whole head, of which only the first pairs turn (Gemma 4)
  kLongRope,      // a factor for each frequency: one set for short sequences, another for long ones; attention scaled
};

struct RopeConfig {
  RopeType type = RopeType::kDefault;
  int64_t dims = 0;  // of a head, from the first on, that rotate: pairs (i, i + dims / 2); even
  double theta = 10000.0;
  double factor = 1.0;
  double low_freq_factor = 1.0;       // llama3
  double high_freq_factor = 4.0;      // llama3
  double beta_fast = 32.0;            // yarn
  double beta_slow = 1.0;             // yarn
  double attention_factor = 1.0;      // yarn and longrope: multiplies cos and sin
  bool truncate = true;               // yarn: correction range rounded to whole dimensions
  int64_t original_max_position = 0;  // positions of the training, before scaling
  double query_beta = 0;              // queries times 1 + query_beta * ln(1 + floor(position / original_max_position)) (Ministral 3)
  int64_t turning = 0;                // proportional: of `dims`, those that turn; even
  // longrope, [dims / 2]: divide the frequencies. A sequence is short if it will have at most
  // original_max_position positions, generated ones included: all its positions use the same set.
  std::vector<double> short_factors, long_factors;

  // Rows of a table for so many positions. longrope: those of short sequences, then those of long
  // ones, if there can be any.
  int64_t TableRows(int64_t positions) const {
    return type == RopeType::kLongRope && positions > original_max_position ? original_max_position + positions : positions;
  }
  // The row of a position, in a sequence that will have `length` positions (0: not known).
  int64_t TableRow(int64_t position, int64_t length) const {
    const bool is_long = type == RopeType::kLongRope && (length > original_max_position || position >= original_max_position);
    return is_long ? original_max_position + position : position;
  }

  friend bool operator==(const RopeConfig&, const RopeConfig&) = default;
};

// What the attention half of a layer computes.
enum class AttentionKind : uint8_t {
  kSoftmax,  // grouped-query attention over KV
  kLinear,   // a gated delta rule over a state of fixed size (Qwen3.5)
};

// What may differ between the layers of one model.
struct LayerConfig {
  AttentionKind attention = AttentionKind::kSoftmax;
  int64_t num_kv_heads = 0;       // divides num_heads; 0 with linear attention
  int64_t head_dim = 0;           // of q, k and v; even if rope is used; 0 with linear attention
  int64_t window = 0;             // positions that a token attends to, itself included; 0: all
  int32_t rope = 0;               // index into ModelConfig::ropes; -1: no rotation
  int64_t intermediate_size = 0;  // of a dense MLP
  bool experts = false;           // the MLP half has experts (ModelConfig::experts)
  bool keys_are_values = false;   // there is no kV: the product of kK, before its norm, is v (Gemma 4)
  // Index into ModelConfig::shared_kv_cols: the layer sends its keys and values to later layers with
  // the same index, or takes them from the last layer before that sends them (Gemma 4 E2B). -1: neither.
  int32_t shared_kv = -1;
  bool takes_kv = false;  // there is neither kK nor kV

  bool has_kv() const { return attention == AttentionKind::kSoftmax; }
  friend bool operator==(const LayerConfig&, const LayerConfig&) = default;
};

// The sizes of linear attention: the gated delta rule after a causal convolution over q, k and v.
struct LinearAttentionConfig {
  int64_t key_heads = 0;    // divides value_heads
  int64_t value_heads = 0;  // each has a state [key_dim, value_dim] fp32
  int64_t key_dim = 0;      // of a head
  int64_t value_dim = 0;
  int64_t conv_width = 0;    // positions that the convolution sees, the token's own included
  bool by_key_head = false;  // kQkvz and kBetaDecay instead of kQkv, kZ, kBeta and kDecay (Qwen3-Next)

  int64_t key_cols() const { return key_heads * key_dim; }
  int64_t value_cols() const { return value_heads * value_dim; }
  int64_t conv_cols() const { return 2 * key_cols() + value_cols(); }  // q, k, v
  friend bool operator==(const LinearAttentionConfig&, const LinearAttentionConfig&) = default;
};

// Attention over latents: a position keeps a rotated key that all heads share, and a latent from which
// each head's key and value are products. Heads attend to the latents themselves: the matrices of
// keys go to the queries, the matrices of values to the results (DeepSeek's MLA).
struct LatentAttentionConfig {
  int64_t query_rank = 0;  // columns between kQDown and kQUp
  int64_t rank = 0;        // of a latent
  int64_t rotated = 0;     // dimensions of a head that rotate; even, neighbours together
  int64_t plain = 0;       // dimensions of a head that do not
  int64_t value_dim = 0;   // of a head
  double norm_eps = 1e-6;  // of the norms of kQDown and kKvDown

  // What a position keeps, and what a head attends with: the rotated dimensions, then the latent.
  constexpr int64_t kv_cols() const { return rotated + rank; }
  friend bool operator==(const LatentAttentionConfig&, const LatentAttentionConfig&) = default;
};

// How a router turns its products into scores.
enum class RouterScoring : uint8_t {
  kSoftmax,        // over all experts
  kSoftmaxOfBest,  // over the chosen experts alone
  kSigmoid,        // of each product
};

// The experts of a layer: `per_token` of `count` MLPs compute a row, and their weighted sum is the
// result. The best scores win, a lower id among equals.
struct ExpertsConfig {
  int64_t count = 0;
  int64_t per_token = 0;
  int64_t intermediate_size = 0;
  int64_t shared_intermediate_size = 0;  // of the expert that computes all rows; 0: there is none
  RouterScoring scoring = RouterScoring::kSoftmax;
  bool normalized = false;   // weights are divided by their sum
  double weight_factor = 1;  // of the weights, after that
  bool correction = false;   // kRouterCorrection is there
  // The experts are cut into equal groups. Only those of the `groups_kept` groups with the largest
  // sums of their two best scores can be chosen.
  int64_t groups = 1;
  int64_t groups_kept = 1;
  bool shared_scale = false;  // kSharedScale is there
  bool router_bias = false;
  bool bias = false;        // of the experts' matrices
  bool alternates = false;  // kGateUp instead of kGate and kUp
  // The router, the shared expert and the experts normalise their inputs apart, and so are the
  // results before they are added; kExpertScale multiplies the weights (Gemma 4).
  bool norms_apart = false;

  friend bool operator==(const ExpertsConfig&, const ExpertsConfig&) = default;
};

struct ModelConfig {
  std::string architecture;  // as config.json spells it
  std::string model_type;    // the name of the family: "llama", "qwen3_5" (family.h)
  int64_t hidden_size = 0;
  int64_t num_heads = 0;
  int64_t vocab_size = 0;
  int64_t max_positions = 0;  // longest context that the model states
  std::vector<LayerConfig> layers;
  std::vector<RopeConfig> ropes;  // that layers use; empty if positions are learned
  std::optional<LinearAttentionConfig> linear_attention;
  std::optional<ExpertsConfig> experts;
  NormKind norm = NormKind::kRms;
  double norm_eps = 1e-5;
  bool norm_affine = true;  // LayerNorm has weight and bias
  double norm_offset = 0;   // added to the weights of all RMSNorms but that of linear attention
  bool final_norm = true;
  Activation activation = Activation::kSilu;
  bool gated_mlp = true;        // act(gate) * up; else act(up)
  bool tie_embeddings = false;  // the head uses the embedding tensor
  bool qkv_bias = false;
  bool attention_output_bias = false;
  bool mlp_bias = false;
  bool qk_norm = false;             // RMSNorm over head_dim of q and k, before RoPE
  bool attention_gate = false;      // q_proj has for each head q, then a gate; sigmoid(gate) multiplies the result
  double score_scale = 0;           // of q k; 0: 1 / sqrt(head_dim)
  double embedding_multiplier = 1;  // of the embedding rows; in a ModelSpec as a float of the working dtype if the family rounds it
  double residual_multiplier = 1;   // of what a block adds to the residual stream
  double logits_divisor = 1;
  double score_cap = 0;         // scores are cap * tanh(score / cap); 0: they are not capped
  double logits_cap = 0;        // the same of logits
  double activation_limit = 0;  // of Activation::kClampedSwiglu; of kFatRelu: its threshold
  bool after_norms = false;     // kAfterNorm in both halves of a layer
  // Both halves of a layer read the residual stream before it (Falcon). The attention half computes
  // the input of the MLP half, which has no norm.
  bool parallel_halves = false;
  bool sinks = false;              // kSinks is there
  bool qk_norm_all_heads = false;  // qk_norm: over the columns of all heads at once (MiniMax)
  bool learned_positions = false;
  int64_t position_offset = 0;               // learned positions: the row of position 0 (2 in OPT)
  std::optional<Quantization> quantization;  // default of the packed layers
  // Of single matrices, by the path of their tensors, or of the module that has them; nullopt: dense.
  // Only a model without a checkpoint needs it.
  std::map<std::string, std::optional<Quantization>, std::less<>> quantization_of;
  std::string quantization_method;  // of "quantization_config"; empty: that of MLX, or none
  std::optional<int32_t> bos_token_id;
  std::vector<int32_t> eos_token_ids;
  int64_t draft_layers = 0;     // layers after the last one in the checkpoint, which predict further tokens; not computed
  bool parallel_norms = false;  // with parallel_halves: kMlpNorm is there; else both halves have the same norm
  bool qkv_by_head = false;     // kQkvByHead instead of kQ, kK and kV
  bool value_norm = false;      // RMSNorm over head_dim of v, without weights (Gemma 4)
  bool layer_scale = false;     // kLayerScale multiplies the residual stream after a layer (Gemma 4)
  // Of FP8: the checkpoint also has scales for programs that quantise the inputs of matrices, or KV.
  // We quantise neither, so they are not used.
  bool has_input_scales = false;
  bool has_kv_scales = false;
  // All layers attend to latents: their LayerConfig has one KV head of kv_cols(), of which a page has
  // no values.
  std::optional<LatentAttentionConfig> latent_attention;
  // Every layer has an embedding of its own, with so many columns (Gemma 4 E2B and E4B); 0: it has
  // none. All layers together have `layer_input_cols` columns.
  int64_t layer_inputs = 0;
  int64_t layer_input_cols = 0;
  std::vector<int64_t> shared_kv_cols;  // of the keys, and of the values, that layers share

  int64_t num_layers() const { return static_cast<int64_t>(layers.size()); }
  const LayerConfig& layer(int64_t index) const { return layers[static_cast<size_t>(index)]; }
  // Columns of what a block hands to the next one: the residual stream; with parallel_halves the input
  // of the layer's MLP half; the inputs of all layers; keys and values that layers share.
  int64_t stream_cols() const { return shared_kv_at(static_cast<int32_t>(shared_kv_cols.size())); }
  // The first of these columns that has inputs of layers; keys that layers share.
  int64_t layer_inputs_at() const { return hidden_size * (parallel_halves ? 2 : 1); }
  int64_t shared_kv_at(int32_t index) const {
    int64_t at = layer_inputs_at() + layer_input_cols;
    for (int32_t i = 0; i < index; ++i) at += 2 * shared_kv_cols[static_cast<size_t>(i)];
    return at;
  }
  int64_t q_cols(int64_t layer_index) const { return num_heads * layer(layer_index).head_dim; }
  int64_t kv_cols(int64_t layer_index) const { return layer(layer_index).num_kv_heads * layer(layer_index).head_dim; }
  // Elements that a position of the layer keeps: keys and values, or a rotated key and a latent.
  int64_t kept_cols(int64_t layer_index) const { return (latent_attention ? 1 : 2) * kv_cols(layer_index); }
  // Columns of the input of kO.
  int64_t attended_cols(int64_t layer_index) const {
    return latent_attention ? num_heads * latent_attention->value_dim : q_cols(layer_index);
  }
  // Sequences with more positions rotate otherwise than shorter ones (longrope), so they share no KV
  // with those. 0: all rotate alike.
  int64_t short_positions() const {
    for (const RopeConfig& rope : ropes) {
      if (rope.type == RopeType::kLongRope) return rope.original_max_position;
    }
    return 0;
  }
  // Whether all layers with KV have the same heads and window, and keys and values, so that another
  // device can attend for any of them.
  bool HasAlikeKv() const;
  // The largest of all layers.
  int64_t MostHeadDim() const;
  int64_t MostKvHeads() const;
  int64_t MostIntermediate() const;
};

// Reads and checks config.json. Errors begin with `name`, the path of the file. For an unknown
// architecture, activation, RoPE type or quantisation method, the error lists the supported ones.
// Bounds on all numbers prevent overflow of later sizes.
absl::StatusOr<ModelConfig> ParseModelConfig(std::string_view json, std::string_view name);

}  // namespace lime
