#include "planner/plan/model/model_config.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"
#include "planner/base/json_fields.h"
#include "planner/base/json_text.h"
#include "planner/base/strings.h"
#include "planner/plan/model/config_parts.h"
#include "planner/plan/model/token_ids.h"

namespace lime {
namespace {

using config::kMaxFactor;
using config::kMaxHeadDim;
using config::kMaxPositions;
using config::kMaxWidth;
using config::LayerType;
using config::LayerTypes;
using config::Unsupported;
using nlohmann::json;

// Bounds that keep every product of sizes far below 2^63 and every id in 32 bits.
constexpr int64_t kMaxLayers = 4096;
constexpr int64_t kMaxHeads = 65536;
constexpr int64_t kMaxConvWidth = 8;
constexpr double kMaxEps = 1e6;

absl::StatusOr<Activation> ParseActivation(const std::string& spelled, std::string_view name) {
  if (const std::optional<Activation> known = config::ActivationNamed(spelled)) return *known;
  return Unsupported(name, absl::StrCat("activation \"", spelled.substr(0, 80), "\""),
                     "silu, relu, fatrelu, gelu and gelu_pytorch_tanh are supported");
}

// `of_class`: the value of a missing field; 0: it must be there.
int64_t IntOrDefault(JsonFields& fields, const char* key, int64_t of_class, int64_t high) {
  return of_class > 0 ? fields.IntOr(key, of_class, 1, high) : fields.Int(key, 1, high);
}

// One key head for all queries, unless the file says otherwise.
int64_t FalconKvHeads(JsonFields& fields, int64_t heads) {
  if (fields.BoolOr("new_decoder_architecture", false)) return fields.IntOr("num_kv_heads", heads, 1, heads);
  return fields.BoolOr("multi_query", true) ? 1 : heads;
}

// Whether both halves of a layer have a norm of their own.
bool FalconHasTwoNorms(JsonFields& fields) {
  return fields.BoolOr("new_decoder_architecture", false) && fields.IntOr("num_ln_in_parallel_attn", 2, 1, 2) == 2;
}

// Sets what all layers with KV have in common.
void ReadHeads(const json& root, const Family& family, JsonFields& fields, const ModelConfig& config, LayerConfig& layer) {
  layer.num_kv_heads = config.num_heads;
  layer.head_dim = config.num_heads > 0 ? config.hidden_size / config.num_heads : 0;
  if (family.falcon_heads) layer.num_kv_heads = FalconKvHeads(fields, config.num_heads);
  if (!family.grouped_queries) return;
  const auto missing = [&](const char* key, int64_t of_class, int64_t implied) {
    return of_class > 0 && !root.contains(key) ? of_class : implied;
  };
  layer.num_kv_heads = fields.IntOr("num_key_value_heads", missing("num_key_value_heads", family.defaults.kv_heads, layer.num_kv_heads), 1,
                                    config.num_heads);
  layer.head_dim = fields.IntOr("head_dim", missing("head_dim", family.defaults.head_dim, layer.head_dim), 1, kMaxHeadDim);
}

absl::Status ReadOptions(const json& root, std::string_view name, const Family& family, ModelConfig& config) {
  JsonFields fields(root, std::string(name));
  const std::string eps = family.norm_eps;
  if (!eps.empty() && root.contains(eps) && root.at(eps).is_null()) {
    return Invalid(Text(name), ": field \"", eps, "\" is null; state it, or leave it out for ",
                   family.defaults.norm_eps == 1e-5 ? "1e-5" : "1e-6");
  }
  if (!eps.empty()) config.norm_eps = fields.DoubleOr(eps, family.defaults.norm_eps, 0.0, kMaxEps);
  config.tie_embeddings = fields.BoolOr("tie_word_embeddings", family.defaults.tie_embeddings);
  for (const BoolField& field : family.options) config.*field.option = fields.BoolOr(field.name, field.fallback) != field.inverted;
  for (const NumberField& field : family.factors) {
    const double number = fields.DoubleOr(field.name, field.fallback, 1 / kMaxFactor, kMaxFactor);
    config.*field.option = field.inverse_root ? 1 / std::sqrt(number) : number;
  }
  if (family.falcon_heads) config.parallel_norms = FalconHasTwoNorms(fields);
  if (family.scales_embedding) config.embedding_multiplier = std::sqrt(static_cast<double>(config.hidden_size));
  if (config.activation == Activation::kClampedSwiglu || config.activation == Activation::kDoubleRelu) {
    // config.json names the function within: what is clamped, or what both factors pass through.
    const char* const supported = config.activation == Activation::kDoubleRelu ? "relu" : "silu";
    const std::string within = fields.StringOr(family.activation, "silu");
    if (fields.status().ok() && within != supported)
      return Unsupported(name, absl::StrCat("activation \"", within.substr(0, 80), "\""), absl::StrCat(supported, " is supported"));
    return fields.status();
  }
  const char* const usual = config.activation == Activation::kRelu ? "relu" : "silu";
  const std::string activation =
      fields.StringOr(family.activation, family.defaults.activation != nullptr ? family.defaults.activation : usual);
  LIME_RETURN_IF_ERROR(fields.status());
  if (activation == "fatrelu" && config.gated_mlp) {
    config.activation = Activation::kFatRelu;
    config.activation_limit = fields.Double("hidden_act_param", 0, kMaxFactor);
    return fields.status();
  }
  LIME_ASSIGN_OR_RETURN(config.activation, ParseActivation(activation, name));
  return absl::OkStatus();
}

absl::Status CheckHeads(const Family& family, const LayerConfig& layer, const ModelConfig& config, std::string_view name) {
  if (config.num_heads % layer.num_kv_heads != 0) {
    return Invalid(Text(name), ": num_attention_heads ", config.num_heads, " is not a multiple of num_key_value_heads ",
                   layer.num_kv_heads);
  }
  if (layer.head_dim < 1 || config.num_heads * layer.head_dim > kMaxWidth) {
    return Invalid(Text(name), ": head_dim ", layer.head_dim, " with ", config.num_heads, " heads is out of range");
  }
  if (!family.grouped_queries && layer.head_dim * config.num_heads != config.hidden_size) {
    return Invalid(Text(name), ": hidden_size ", config.hidden_size, " is not a multiple of num_attention_heads ", config.num_heads);
  }
  return absl::OkStatus();
}

absl::StatusOr<LinearAttentionConfig> ReadLinearAttention(const json& root, std::string_view name, const LinearAttentionConfig& defaults) {
  JsonFields fields(root, std::string(name));
  LinearAttentionConfig linear{.by_key_head = defaults.by_key_head};
  linear.key_heads = fields.IntOr("linear_num_key_heads", defaults.key_heads, 1, kMaxHeads);
  linear.value_heads = fields.IntOr("linear_num_value_heads", defaults.value_heads, 1, kMaxHeads);
  linear.key_dim = fields.IntOr("linear_key_head_dim", defaults.key_dim, 1, kMaxHeadDim);
  linear.value_dim = fields.IntOr("linear_value_head_dim", defaults.value_dim, 1, kMaxHeadDim);
  linear.conv_width = fields.IntOr("linear_conv_kernel_dim", defaults.conv_width, 2, kMaxConvWidth);
  LIME_RETURN_IF_ERROR(fields.status());
  if (linear.value_heads % linear.key_heads != 0) {
    return Invalid(Text(name), ": linear_num_value_heads ", linear.value_heads, " is not a multiple of linear_num_key_heads ",
                   linear.key_heads);
  }
  if (linear.conv_cols() > kMaxWidth)
    return Invalid(Text(name), ": linear attention with ", linear.conv_cols(), " columns of q, k and v is out of range");
  return linear;
}

// Sets config.latent_attention, and the heads of its layers.
absl::Status ReadLatentAttention(const json& root, std::string_view name, ModelConfig& config, LayerConfig& layer) {
  JsonFields fields(root, std::string(name));
  for (const char* key : {"q_lora_rank", "kv_lora_rank"}) {
    if (!fields.Has(key)) return Unsupported(name, absl::StrCat("latent attention without \"", key, "\""), "a stated rank is supported");
  }
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    const auto found = root.find(key);
    const json type = found != root.end() && found->is_object() ? found->value("rope_type", found->value("type", json("default"))) : json();
    if (!type.is_null() && type != "default")
      return Unsupported(name, absl::StrCat(key, " with latent attention"), "no scaling is supported");
  }
  if (!fields.BoolOr("rope_interleave", true)) return Unsupported(name, "rope_interleave false", "true is supported");
  LatentAttentionConfig latent;
  latent.query_rank = fields.Int("q_lora_rank", 1, kMaxWidth);
  latent.rank = fields.Int("kv_lora_rank", 1, kMaxHeadDim);
  latent.rotated = fields.Int("qk_rope_head_dim", 2, kMaxHeadDim);
  latent.plain = fields.Int("qk_nope_head_dim", 1, kMaxHeadDim);
  latent.value_dim = fields.Int("v_head_dim", 1, kMaxHeadDim);
  LIME_RETURN_IF_ERROR(fields.status());
  if (latent.rotated % 2 != 0) return Invalid(Text(name), ": qk_rope_head_dim ", latent.rotated, " is odd; rotary embedding needs pairs");
  if (config.num_heads * std::max(latent.kv_cols(), latent.plain + latent.value_dim) > kMaxWidth)
    return Invalid(Text(name), ": latent attention with ", config.num_heads, " heads of ", latent.kv_cols(), " columns is out of range");
  config.latent_attention = latent;
  config.score_scale = 1 / std::sqrt(static_cast<double>(latent.rotated + latent.plain));
  layer.num_kv_heads = 1, layer.head_dim = latent.kv_cols();
  return absl::OkStatus();
}

// Layers with linear attention have neither KV nor a rotation. `full`: the layers that attend to all
// positions.
void SetLayers(const LayerTypes& types, const Family& family, const LayerConfig& common, const LayerConfig& full, ModelConfig& config) {
  for (const LayerType type : types.of_layer) {
    LayerConfig layer = type == LayerType::kFull ? full : common;
    if (layer.rope >= 0) layer.rope = config::RopeOf(type, types, family);
    if (type == LayerType::kLinear) {
      layer = {.attention = AttentionKind::kLinear, .rope = -1, .intermediate_size = common.intermediate_size};
    }
    config.layers.push_back(layer);
  }
}

absl::Status ReadLayers(const json& root, std::string_view name, const Family& family, ModelConfig& config) {
  JsonFields fields(root, std::string(name));
  const int64_t num_layers = fields.Int("num_hidden_layers", 1, kMaxLayers);
  LayerConfig layer;
  const bool has_experts = family.experts != nullptr && (family.has_experts == nullptr || fields.BoolOr(family.has_experts, false));
  if (!has_experts)
    layer.intermediate_size = IntOrDefault(fields, family.intermediate_size, family.defaults.inner_factor * config.hidden_size, kMaxWidth);
  ReadHeads(root, family, fields, config, layer);
  config.max_positions = fields.IntOr("max_position_embeddings", family.defaults.positions, 1, kMaxPositions);
  LIME_RETURN_IF_ERROR(fields.status());
  if (family.latent_attention) LIME_RETURN_IF_ERROR(ReadLatentAttention(root, name, config, layer));
  LIME_RETURN_IF_ERROR(CheckHeads(family, layer, config, name));
  LIME_ASSIGN_OR_RETURN(const LayerTypes types, config::ReadLayerTypes(root, name, family, num_layers));
  LayerConfig full = layer;
  if (family.global_heads) {
    LIME_RETURN_IF_ERROR(config::ReadGlobalHeads(root, name, types, config, full));
    LIME_RETURN_IF_ERROR(CheckHeads(family, full, config, name));
  }
  if (config.learned_positions) {
    layer.rope = full.rope = -1;
  } else {
    const int64_t rotated = config.latent_attention ? config.latent_attention->rotated : full.head_dim;
    const config::HeadDims heads{.full = rotated, .sliding = layer.head_dim};
    LIME_RETURN_IF_ERROR(config::ReadRopes(root, types, name, family, heads, config));
  }
  SetLayers(types, family, layer, full, config);
  if (types.Have(LayerType::kLinear)) {
    LIME_ASSIGN_OR_RETURN(config.linear_attention, ReadLinearAttention(root, name, family.defaults.linear_attention));
  }
  if (has_experts) LIME_RETURN_IF_ERROR(config::ReadExperts(root, name, family, config));
  if (family.skips_rotation) LIME_RETURN_IF_ERROR(config::ReadSkippedRotations(root, name, config));
  if (family.global_heads) {
    LIME_RETURN_IF_ERROR(config::ReadLayerInputs(root, name, config));
    LIME_RETURN_IF_ERROR(config::ReadSharedKv(root, name, types, config));
  }
  config::SetWindows(types, config);
  return absl::OkStatus();
}

template <typename Size>
int64_t Most(const ModelConfig& config, Size LayerConfig::*size) {
  int64_t most = 0;
  for (const LayerConfig& layer : config.layers) most = std::max(most, layer.*size);
  return most;
}

}  // namespace

bool ModelConfig::HasAlikeKv() const {
  if (latent_attention) return false;
  const auto first = std::ranges::find_if(layers, &LayerConfig::has_kv);
  return std::ranges::all_of(layers, [&](const LayerConfig& layer) {
    return !layer.has_kv() ||
           (layer.head_dim == first->head_dim && layer.num_kv_heads == first->num_kv_heads && layer.window == first->window);
  });
}

int64_t ModelConfig::MostHeadDim() const {
  return Most(*this, &LayerConfig::head_dim);
}

int64_t ModelConfig::MostKvHeads() const {
  return Most(*this, &LayerConfig::num_kv_heads);
}

int64_t ModelConfig::MostIntermediate() const {
  return Most(*this, &LayerConfig::intermediate_size);
}

std::optional<Activation> config::ActivationNamed(std::string_view spelled) {
  constexpr std::pair<std::string_view, Activation> kNames[] = {{"silu", Activation::kSilu},
                                                                {"swish", Activation::kSilu},
                                                                {"relu", Activation::kRelu},
                                                                {"gelu", Activation::kGelu},
                                                                {"gelu_pytorch_tanh", Activation::kGeluTanh},
                                                                {"gelu_new", Activation::kGeluTanh}};
  for (const auto& [name, activation] : kNames) {
    if (name == spelled) return activation;
  }
  return std::nullopt;
}

absl::Status config::Unsupported(std::string_view name, std::string_view what, std::string_view supported) {
  return absl::UnimplementedError(absl::StrCat(Text(name), ": ", Text(what), " is not supported; ", Text(supported)));
}

absl::StatusOr<ModelConfig> ParseModelConfig(std::string_view text, std::string_view file) {
  std::string name(file);
  LIME_ASSIGN_OR_RETURN(json whole, ParsePythonJsonObject(text, name));
  LIME_ASSIGN_OR_RETURN(const json root, config::TextConfig(std::move(whole), name));
  LIME_ASSIGN_OR_RETURN(const config::Architecture architecture, config::FindArchitecture(root, name));
  const Family& family = *architecture.family;
  ModelConfig config;
  config.architecture = architecture.name;
  config.model_type = family.name;
  if (family.set_options != nullptr) family.set_options(config);
  JsonFields fields(root, name);
  config.hidden_size = fields.Int("hidden_size", 1, kMaxWidth);
  config.num_heads = IntOrDefault(fields, "num_attention_heads", family.defaults.heads, kMaxHeads);
  config.vocab_size = IntOrDefault(fields, "vocab_size", family.defaults.vocab_size, kMaxVocab);
  config.draft_layers = fields.IntOr("num_nextn_predict_layers", 0, 0, kMaxLayers);
  LIME_RETURN_IF_ERROR(fields.status());
  if (config.num_heads > config.hidden_size) return Invalid(name, ": num_attention_heads is larger than hidden_size");
  LIME_RETURN_IF_ERROR(ReadOptions(root, name, family, config));
  LIME_RETURN_IF_ERROR(ReadLayers(root, name, family, config));
  LIME_RETURN_IF_ERROR(config::RefuseOtherComputations(root, name, family, config));
  LIME_RETURN_IF_ERROR(config::ReadQuantization(root, name, config));
  LIME_ASSIGN_OR_RETURN(const std::vector<int32_t> bos, ParseTokenIds(root, "bos_token_id", name));
  if (!bos.empty()) config.bos_token_id = bos.front();
  LIME_ASSIGN_OR_RETURN(config.eos_token_ids, ParseTokenIds(root, "eos_token_id", name));
  return config;
}

}  // namespace lime
