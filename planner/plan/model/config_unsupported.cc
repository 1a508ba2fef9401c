// Refuses fields that change a model's computation and that its family does not have. Programs for
// our families, or for related ones, use them. Each field may have the value that changes nothing.
#include <algorithm>
#include <cmath>
#include <set>
#include <string>

#include "absl/strings/str_cat.h"
#include "planner/plan/model/config_parts.h"

namespace lime::config {
namespace {

using nlohmann::json;

// Null, false, 0 or empty.
bool IsOff(const json& value) {
  if (value.is_boolean()) return !value.get<bool>();
  if (value.is_number()) return value.get<double>() == 0;
  return value.is_string() ? value.get_ref<const std::string&>().empty() : value.empty();  // null is empty
}

bool IsNumber(const json& value, double number) {
  return value.is_null() || (value.is_number() && std::abs(value.get<double>() - number) <= 1e-6 * std::abs(number));
}

absl::Status Refuse(std::string_view name, const std::string& key, const json& value) {
  const std::string text = value.dump(-1, ' ', true, json::error_handler_t::replace).substr(0, 80);
  return Unsupported(name, absl::StrCat("field \"", key, "\" with the value ", text),
                     "models are supported if the field does not change their computation");
}

// If one of them is on, the computation differs.
constexpr const char* kSwitches[] = {
    // attention
    "attn_logit_softcapping", "attention_chunk_size", "attn_temperature_tuning", "clip_qkv", "use_logn_attn", "use_dynamic_ntk",
    "qk_layernorm", "query_key_norm", "use_alibi", "alibi", "use_bidirectional_attention", "attention_sink", "use_attention_sink",
    "num_kv_shared_layers", "kv_lora_rank", "q_lora_rank", "add_cross_attention", "is_encoder_decoder", "sliding_window_pattern",
    "cla_share_factor", "attn_output_gate", "use_gated_attention", "scale_attn_by_inverse_layer_idx", "attn_logit_softcap",
    // rotary embedding
    "rope_interleaved", "rope_interleave", "rope_traditional", "no_rope_layer_interval", "nope_layer_interval",
    // layers
    "num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts", "use_parallel_residual", "use_post_norm", "scale_depth",
    "dim_model_base", "pruned_heads", "compression_config", "parallel_residual", "parallel_block", "sandwich_norm",
    "layernorm_zero_centered", "rms_norm_add_unit_offset",
    // the embedding and the head
    "scale_embedding", "scale_embeddings", "final_logit_softcapping", "final_logit_softcap", "logits_soft_cap", "lm_head_bias"};

// Factors; 1 scales nothing.
constexpr const char* kFactors[] = {"residual_multiplier",
                                    "embedding_multiplier",
                                    "embedding_multiplier_scale",
                                    "embedding_scale",
                                    "scale_emb",
                                    "key_multiplier",
                                    "attention_in_multiplier",
                                    "attention_out_multiplier",
                                    "attn_output_multiplier",
                                    "logits_scaling",
                                    "logit_scaling",
                                    "logit_scale",
                                    "output_multiplier_scale",
                                    "lm_head_multiplier",
                                    "rope_ratio",
                                    "rope_pct",
                                    "rotary_pct",
                                    "rotary_percent",
                                    "rotary_emb_fraction"};

// Whether the model uses rotary embeddings at all.
constexpr const char* kRotations[] = {"use_rope", "use_rotary", "use_rotary_embeddings"};

// A list of SmolLM3 and Llama 4: 1 for each layer with the rotary embedding.
bool EveryLayerRotates(const json& value) {
  if (!value.is_array()) return IsOff(value);
  for (const json& layer : value) {
    if (IsOff(layer)) return false;
  }
  return true;
}

// A list of MiniMax: 1 for each layer with attention over KV.
bool EveryLayerIsSoftmax(const json& value) {
  return value.is_null() || (value.is_array() && std::ranges::all_of(value, [](const json& layer) { return layer == 1; }));
}

// Fields that the family reads, or that change nothing in it.
std::set<std::string_view> KnownFields(const Family& family) {
  std::set<std::string_view> known(family.allowed.begin(), family.allowed.end());
  for (const BoolField& field : family.options) known.insert(field.name);
  for (const NumberField& field : family.factors) known.insert(field.name);
  for (const TextField& field : family.texts) known.insert(field.name);
  if (family.skips_rotation) known.insert({"no_rope_layers", "no_rope_layer_interval"});
  if (family.experts != nullptr) known.insert(std::begin(kExpertCounts), std::end(kExpertCounts));
  if (family.rotated_dims != nullptr) known.insert(family.rotated_dims);
  if (family.layers == LayerPattern::kWindowExcept) known.insert("sliding_window_pattern");
  if (family.global_heads) known.insert("num_kv_shared_layers");
  if (family.latent_attention) known.insert({"q_lora_rank", "kv_lora_rank", "rope_interleave"});
  known.insert(family.activation);
  return known;
}

}  // namespace

absl::Status RefuseOtherComputations(const json& root, std::string_view name, const Family& family, const ModelConfig& config) {
  const std::set<std::string_view> known = KnownFields(family);
  const auto check = [&](std::string_view key, auto is_neutral) -> absl::Status {
    const auto found = root.find(std::string(key));
    return found == root.end() || known.contains(key) || is_neutral(*found) ? absl::OkStatus() : Refuse(name, std::string(key), *found);
  };
  const auto dimension = static_cast<double>(config.MostHeadDim());
  for (const char* key : kSwitches) LIME_RETURN_IF_ERROR(check(key, IsOff));
  for (const std::string_view key : family.refused) LIME_RETURN_IF_ERROR(check(key, IsOff));
  if (family.layers == LayerPattern::kLinear) LIME_RETURN_IF_ERROR(check("use_sliding_window", IsOff));
  for (const TextField& field : family.texts) {
    const auto found = root.find(field.name);
    if (found != root.end() && !IsOff(*found) && *found != field.text) return Refuse(name, field.name, *found);
  }
  for (const char* key : kFactors) LIME_RETURN_IF_ERROR(check(key, [](const json& value) { return IsNumber(value, 1); }));
  LIME_RETURN_IF_ERROR(check("attention_multiplier", [&](const json& value) { return IsNumber(value, 1 / std::sqrt(dimension)); }));
  LIME_RETURN_IF_ERROR(check("query_pre_attn_scalar", [&](const json& value) { return IsNumber(value, dimension); }));
  LIME_RETURN_IF_ERROR(check("no_rope_layers", EveryLayerRotates));
  LIME_RETURN_IF_ERROR(check("attn_type_list", EveryLayerIsSoftmax));
  LIME_RETURN_IF_ERROR(
      check("parallel_attn", [&](const json& value) { return config.parallel_halves ? value.is_null() || value == true : IsOff(value); }));
  LIME_RETURN_IF_ERROR(check("is_causal", [](const json& value) { return value.is_null() || value == true; }));
  // Of OPT: the norm before each block, and rows of the embedding as wide as the hidden states.
  LIME_RETURN_IF_ERROR(check("do_layer_norm_before", [](const json& value) { return value.is_null() || value == true; }));
  LIME_RETURN_IF_ERROR(
      check("word_embed_proj_dim", [&](const json& value) { return IsNumber(value, static_cast<double>(config.hidden_size)); }));
  if (config.learned_positions) return absl::OkStatus();
  LIME_RETURN_IF_ERROR(check("rotary_dim", [&](const json& value) { return IsNumber(value, dimension); }));
  for (const char* key : kRotations) LIME_RETURN_IF_ERROR(check(key, [](const json& value) { return value.is_null() || value == true; }));
  LIME_RETURN_IF_ERROR(check("position_embedding_type", [](const json& value) {
    return value.is_null() || value == "rope" || value == "rotary" || value == "rotary_embedding";
  }));
  // Options that only some classes have.
  for (const char* key : {"use_qk_norm", "qk_norm", "mlp_bias", "attention_bias"}) LIME_RETURN_IF_ERROR(check(key, IsOff));
  if (!config.qkv_bias) {
    for (const char* key : {"bias", "use_bias", "qkv_bias"}) LIME_RETURN_IF_ERROR(check(key, IsOff));
  }
  // Other families' names for hidden_act.
  for (const char* key : {"hidden_activation", "activation_function"}) {
    LIME_RETURN_IF_ERROR(check(key, [&](const json& value) {
      return value.is_null() || (value.is_string() && ActivationNamed(value.get_ref<const std::string&>()) == config.activation);
    }));
  }
  return absl::OkStatus();
}

}  // namespace lime::config
