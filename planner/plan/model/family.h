// The families of models as data: how each spells its config.json and names its tensors, and what
// its class in transformers computes. families/ has one file for each.
//
// A family without new mathematics is a file there and its line in families/families.cc.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "planner/base/dtype.h"
#include "planner/plan/model/block_kind.h"
#include "planner/plan/model/model_config.h"
#include "planner/plan/model/model_spec.h"

namespace lime {

// The name of a parameter without ".weight" or ".bias", relative to its layer; in blocks without a
// layer, relative to the prefix of all names. Roles of one block with the same name share a tensor:
// their rows follow each other in the order of the roles.
//
// The name of an expert's matrix has a '#' in the place of the expert's number; without one, all
// experts are in one tensor [experts, rows, cols], which may lack ".weight". Such a matrix may have
// several names: a checkpoint uses one of them.
struct TensorName {
  BlockKind block = BlockKind::kEmbedding;
  TensorRole role = TensorRole::kNorm;
  std::string_view stem;
  bool ModelConfig::*when = nullptr;  // the name is used only with this option; the first that fits counts
};

// A boolean field of config.json that sets an option of the model.
struct BoolField {
  const char* name = nullptr;
  bool fallback = false;
  bool ModelConfig::*option = nullptr;
  bool inverted = false;  // the option is on if the field is false
};

// A number of config.json that sets an option of the model.
struct NumberField {
  const char* name = nullptr;
  double fallback = 0;
  double ModelConfig::*option = nullptr;
  bool inverse_root = false;  // the option is 1 / sqrt(the field)
};

// A text of config.json. It must be this one if it is stated.
struct TextField {
  const char* name = nullptr;
  std::string_view text;
};

// How config.json spells the fields of experts (ExpertsConfig). A null name: there is no such field,
// and all models of the family have the value of `defaults`.
struct ExpertsFields {
  const char* count = "num_experts";
  const char* per_token = "num_experts_per_tok";
  const char* intermediate_size = "moe_intermediate_size";
  const char* shared_intermediate_size = nullptr;
  const char* shared_count = nullptr;  // the shared expert is as large as so many experts
  const char* normalized = nullptr;
  const char* weight_factor = nullptr;
  const char* correction = nullptr;
  const char* groups = nullptr;
  const char* groups_kept = nullptr;
  // Layers with a dense MLP. All others have experts.
  const char* dense_layers = nullptr;  // a list of layers
  const char* interval = nullptr;      // each so many-th layer has experts
  const char* first_dense = nullptr;   // the first so many layers are dense
  // Values of the class in transformers for missing fields.
  ExpertsConfig defaults = {};
  int64_t default_shared_count = 0;
  int64_t default_first_dense = 0;
};

// Which layers have which attention, if layer_types is not stated.
enum class LayerPattern : uint8_t {
  kFull,          // all layers attend to all positions
  kWindow,        // all layers have the window of the field sliding_window, if there is one
  kWindowFrom,    // with use_sliding_window, layers from max_window_layers on have it
  kLinear,        // every full_attention_interval-th layer is full, the others are linear
  kWindowExcept,  // all layers but every sliding_window_pattern-th have the window
};

// Values that the class in transformers uses for a missing field. A null field is derived from
// others.
struct ClassDefaults {
  int64_t positions = 2048;
  int64_t kv_heads = 0;  // 0: as many as heads
  int64_t head_dim = 0;  // 0: hidden_size / heads
  double norm_eps = 1e-6;
  double rope_theta = 10000;
  double partial_rotation = 1;  // share of a head that rotates
  int64_t window = 0;           // LayerPattern::kWindow, kWindowFrom and kWindowExcept
  bool tie_embeddings = false;
  LinearAttentionConfig linear_attention = {};  // LayerPattern::kLinear
  int64_t heads = 0;                            // 0: the field must be there
  int64_t vocab_size = 0;                       // 0: the field must be there
  int64_t full_every = 0;                       // LayerPattern::kWindowExcept
  int64_t inner_factor = 0;                     // intermediate_size by hidden_size; 0: the field must be there
  const char* activation = nullptr;             // as config.json spells it; null: that of set_options
};

struct Family {
  std::string_view name;                            // ModelConfig::model_type
  std::span<const std::string_view> model_types;    // as config.json spells them
  std::span<const std::string_view> architectures;  // the first one is the class of the text model
  std::span<const std::string_view> prefixes;       // of the names of tensors; the first one is the usual one
  std::span<const TensorName> tensors;
  ClassDefaults defaults;
  LayerPattern layers = LayerPattern::kFull;
  std::span<const BoolField> options;
  std::span<const NumberField> factors;
  // Sets what all models of the family have. Called before any field is read.
  void (*set_options)(ModelConfig& config) = nullptr;
  // Fields that other families refuse, and that this one ignores or reads elsewhere.
  std::span<const std::string_view> allowed;
  // Fields that only this family refuses, unless they are off.
  std::span<const std::string_view> refused;
  // Fields that only some families spell so. An empty name: there is no such field.
  const char* intermediate_size = "intermediate_size";
  const char* activation = "hidden_act";
  const char* norm_eps = "rms_norm_eps";
  bool grouped_queries = true;             // num_key_value_heads and head_dim are read
  bool rotates_part_of_heads = false;      // partial_rotary_factor may be below 1
  bool skips_rotation = false;             // no_rope_layers, no_rope_layer_interval
  bool needs_rope_parameters = false;      // without them the class has a scaling of its own
  const ExpertsFields* experts = nullptr;  // null: all layers have a dense MLP
  bool stacks_experts = false;             // the class stores all experts of a matrix in one tensor
  std::span<const TextField> texts;
  const char* rotated_dims = nullptr;  // the dimensions of a head that rotate, instead of their share
  bool scales_queries = false;         // llama_4_scaling_beta: queries grow with the position
  // Layers with a window have a rotation of their own: with this theta, unless rope_local_base_freq
  // or rope_parameters says another. 0: all layers rotate alike. Then rope_scaling is of the other
  // layers, and max_position_embeddings includes it.
  double sliding_theta = 0;
  std::string_view layer_list = "layers.";  // what begins the names of a layer's tensors, before its number
  bool only_its_types = false;              // another model_type with its architecture is another model
  bool falcon_heads = false;                // multi_query, new_decoder_architecture and their fields are read
  bool scales_embedding = false;            // embedding_multiplier is sqrt(hidden_size), rounded to the working dtype
  bool latent_attention = false;            // kv_lora_rank and its fields are read (LatentAttentionConfig)
  bool global_heads = false;                // global_head_dim and its fields are read: full layers have heads of their own
  const char* has_experts = nullptr;        // a boolean field: whether the model has experts; null: as `experts`
  bool long_rope = false;                   // the rotation longrope may be stated
  // Of a model without a checkpoint whose config.json names no dtype; nullopt: such a file is refused.
  std::optional<DType> working_dtype = std::nullopt;
};

// All families, in the order in which messages list them.
std::span<const Family* const> Families();

// The family of a model. REQUIRES: `model_type` is the name of a family.
const Family& FamilyOf(std::string_view model_type);

// Names that most families use.
inline constexpr std::string_view kTextPrefixes[] = {"model.", "model.language_model.", "language_model.model.", ""};
inline constexpr TensorName kLlamaTensors[] = {
    {BlockKind::kEmbedding, TensorRole::kTokenEmbedding, "embed_tokens"},
    {BlockKind::kAttention, TensorRole::kNorm, "input_layernorm"},
    {BlockKind::kAttention, TensorRole::kQ, "self_attn.q_proj"},
    {BlockKind::kAttention, TensorRole::kK, "self_attn.k_proj"},
    {BlockKind::kAttention, TensorRole::kV, "self_attn.v_proj"},
    {BlockKind::kAttention, TensorRole::kQNorm, "self_attn.q_norm"},
    {BlockKind::kAttention, TensorRole::kKNorm, "self_attn.k_norm"},
    {BlockKind::kAttention, TensorRole::kO, "self_attn.o_proj"},
    {BlockKind::kLinearAttention, TensorRole::kNorm, "input_layernorm"},
    {BlockKind::kLinearAttention, TensorRole::kQkv, "linear_attn.in_proj_qkv"},
    {BlockKind::kLinearAttention, TensorRole::kZ, "linear_attn.in_proj_z"},
    {BlockKind::kLinearAttention, TensorRole::kBeta, "linear_attn.in_proj_b"},
    {BlockKind::kLinearAttention, TensorRole::kDecay, "linear_attn.in_proj_a"},
    {BlockKind::kLinearAttention, TensorRole::kQkvz, "linear_attn.in_proj_qkvz"},
    {BlockKind::kLinearAttention, TensorRole::kBetaDecay, "linear_attn.in_proj_ba"},
    {BlockKind::kLinearAttention, TensorRole::kConv, "linear_attn.conv1d"},
    {BlockKind::kLinearAttention, TensorRole::kDecayLog, "linear_attn.A_log"},
    {BlockKind::kLinearAttention, TensorRole::kDecayBias, "linear_attn.dt_bias"},
    {BlockKind::kLinearAttention, TensorRole::kOutputNorm, "linear_attn.norm"},
    {BlockKind::kLinearAttention, TensorRole::kO, "linear_attn.out_proj"},
    {BlockKind::kMlp, TensorRole::kNorm, "post_attention_layernorm"},
    {BlockKind::kMlp, TensorRole::kGate, "mlp.gate_proj"},
    {BlockKind::kMlp, TensorRole::kUp, "mlp.up_proj"},
    {BlockKind::kMlp, TensorRole::kDown, "mlp.down_proj"},
    {BlockKind::kExperts, TensorRole::kNorm, "post_attention_layernorm"},
    {BlockKind::kExperts, TensorRole::kRouter, "mlp.gate"},
    {BlockKind::kExperts, TensorRole::kSharedScale, "mlp.shared_expert_gate"},
    {BlockKind::kExperts, TensorRole::kSharedGate, "mlp.shared_expert.gate_proj"},
    {BlockKind::kExperts, TensorRole::kSharedUp, "mlp.shared_expert.up_proj"},
    {BlockKind::kExperts, TensorRole::kSharedDown, "mlp.shared_expert.down_proj"},
    {BlockKind::kExperts, TensorRole::kGate, "mlp.experts.#.gate_proj"},
    {BlockKind::kExperts, TensorRole::kUp, "mlp.experts.#.up_proj"},
    {BlockKind::kExperts, TensorRole::kDown, "mlp.experts.#.down_proj"},
    {BlockKind::kExperts, TensorRole::kGate, "mlp.experts.gate_up_proj"},
    {BlockKind::kExperts, TensorRole::kUp, "mlp.experts.gate_up_proj"},
    {BlockKind::kExperts, TensorRole::kDown, "mlp.experts.down_proj"},
    {BlockKind::kExperts, TensorRole::kGate, "mlp.switch_mlp.gate_proj"},
    {BlockKind::kExperts, TensorRole::kUp, "mlp.switch_mlp.up_proj"},
    {BlockKind::kExperts, TensorRole::kDown, "mlp.switch_mlp.down_proj"},
    {BlockKind::kHead, TensorRole::kNorm, "norm"},
};

}  // namespace lime
