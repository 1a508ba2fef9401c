#include "planner/plan/model_config.h"

#include <cmath>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"
#include "planner/base/json_fields.h"
#include "planner/base/json_text.h"
#include "planner/base/strings.h"

namespace lime {
namespace {

using nlohmann::json;

// Bounds that keep every product of sizes far below 2^63 and every id in 32 bits.
constexpr int64_t kMaxLayers = 4096;
constexpr int64_t kMaxWidth = int64_t{1} << 20;
constexpr int64_t kMaxVocab = int64_t{1} << 24;
constexpr int64_t kMaxPositions = int64_t{1} << 24;

struct Architecture {
  std::string_view name;
  std::string_view model_type;
  ModelFamily family;
};

constexpr Architecture kArchitectures[] = {
    {"LlamaForCausalLM", "llama", ModelFamily::kLlama}, {"MistralForCausalLM", "mistral", ModelFamily::kMistral},
    {"Qwen2ForCausalLM", "qwen2", ModelFamily::kQwen2}, {"Qwen3ForCausalLM", "qwen3", ModelFamily::kQwen3},
    {"OPTForCausalLM", "opt", ModelFamily::kOpt},
};

constexpr std::string_view kSupportedArchitectures =
    "LlamaForCausalLM, MistralForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM and OPTForCausalLM are supported";

absl::Status Unsupported(std::string_view name, std::string_view what, std::string_view supported) {
  return absl::UnimplementedError(absl::StrCat(Text(name), ": ", Text(what), " is not supported; ", Text(supported)));
}

absl::StatusOr<Architecture> FindArchitecture(const json& root, std::string_view name) {
  const auto list = root.find("architectures");
  if (list != root.end() && list->is_array() && !list->empty() && list->front().is_string()) {
    const std::string spelled = list->front().get<std::string>();
    for (const Architecture& known : kArchitectures) {
      if (known.name == spelled) return known;
    }
    return Unsupported(name, absl::StrCat("architecture \"", spelled.substr(0, 80), "\""), kSupportedArchitectures);
  }
  const auto type = root.find("model_type");
  if (type != root.end() && type->is_string()) {
    const std::string spelled = type->get<std::string>();
    for (const Architecture& known : kArchitectures) {
      if (known.model_type == spelled) return known;
    }
    return Unsupported(name, absl::StrCat("model_type \"", spelled.substr(0, 80), "\""), kSupportedArchitectures);
  }
  return absl::InvalidArgumentError(
      absl::StrCat(Text(name), ": names no architecture; \"architectures\" must hold one, such as [\"LlamaForCausalLM\"]"));
}

absl::StatusOr<Activation> ParseActivation(const std::string& spelled, std::string_view name) {
  if (spelled == "silu" || spelled == "swish") return Activation::kSilu;
  if (spelled == "relu") return Activation::kRelu;
  return Unsupported(name, absl::StrCat("activation \"", spelled.substr(0, 80), "\""), "silu and relu are supported");
}

double YarnScale(double factor, double multiplier) {
  return factor <= 1 ? 1.0 : 0.1 * multiplier * std::log(factor) + 1.0;
}

absl::StatusOr<RopeType> ParseRopeType(const std::string& spelled, std::string_view name) {
  constexpr std::pair<std::string_view, RopeType> kTypes[] = {{"default", RopeType::kDefault},
                                                              {"linear", RopeType::kLinear},
                                                              {"dynamic", RopeType::kDynamic},
                                                              {"llama3", RopeType::kLlama3},
                                                              {"yarn", RopeType::kYarn}};
  for (const auto& [text, type] : kTypes) {
    if (spelled == text) return type;
  }
  return Unsupported(name, absl::StrCat("rope_scaling type \"", spelled.substr(0, 80), "\""),
                     "default, linear, dynamic, llama3 and yarn are supported");
}

// Reads rope_theta and rope_scaling (or rope_parameters, which holds both, in newer files).
absl::StatusOr<RopeConfig> ParseRope(const json& root, int64_t max_positions, std::string_view name) {
  constexpr double kMaxFactor = 1e6;
  RopeConfig rope;
  rope.original_max_position = max_positions;
  JsonFields top(root, std::string(name));
  rope.theta = top.DoubleOr("rope_theta", 10000.0, 1.0, 1e15);
  LIME_RETURN_IF_ERROR(top.status());
  const std::string key = top.Has("rope_scaling") ? "rope_scaling" : "rope_parameters";
  if (!top.Has(key)) return rope;
  const json& object = root.at(key);
  if (!object.is_object()) return absl::InvalidArgumentError(absl::StrCat(Text(name), ": field \"", key, "\" is not an object"));
  JsonFields fields(object, absl::StrCat(Text(name), ": ", key));
  const std::string type = fields.StringOr("rope_type", fields.StringOr("type", "default"));
  LIME_RETURN_IF_ERROR(fields.status());
  LIME_ASSIGN_OR_RETURN(rope.type, ParseRopeType(type, name));
  rope.theta = fields.DoubleOr("rope_theta", rope.theta, 1.0, 1e15);
  if (rope.type == RopeType::kDefault) return fields.status().ok() ? absl::StatusOr<RopeConfig>(rope) : fields.status();
  if (!fields.Has("factor")) return absl::InvalidArgumentError(absl::StrCat(Text(name), ": ", key, ": field \"factor\" is missing"));
  rope.factor = fields.DoubleOr("factor", 1.0, 1e-6, kMaxFactor);
  rope.low_freq_factor = fields.DoubleOr("low_freq_factor", 1.0, 1e-6, kMaxFactor);
  rope.high_freq_factor = fields.DoubleOr("high_freq_factor", 4.0, 1e-6, kMaxFactor);
  rope.beta_fast = fields.DoubleOr("beta_fast", 32.0, 1e-6, kMaxFactor);
  rope.beta_slow = fields.DoubleOr("beta_slow", 1.0, 1e-6, kMaxFactor);
  rope.truncate = fields.BoolOr("truncate", true);
  rope.original_max_position = fields.IntOr("original_max_position_embeddings", max_positions, 1, kMaxPositions);
  if (rope.type == RopeType::kYarn) {
    const double mscale = fields.DoubleOr("mscale", 0.0, 0.0, kMaxFactor);
    const double mscale_all = fields.DoubleOr("mscale_all_dim", 0.0, 0.0, kMaxFactor);
    const double implied =
        mscale > 0 && mscale_all > 0 ? YarnScale(rope.factor, mscale) / YarnScale(rope.factor, mscale_all) : YarnScale(rope.factor, 1.0);
    rope.attention_factor = fields.DoubleOr("attention_factor", implied, 1e-6, kMaxFactor);
  }
  LIME_RETURN_IF_ERROR(fields.status());
  if (rope.type == RopeType::kLlama3 && rope.high_freq_factor <= rope.low_freq_factor) {
    return absl::InvalidArgumentError(absl::StrCat(Text(name), ": ", key, ": high_freq_factor must be above low_freq_factor"));
  }
  return rope;
}

// MLX writes {"group_size", "bits"} as "quantization"; other methods announce themselves in "quantization_config".
absl::Status ParseQuantization(const json& root, std::string_view name, ModelConfig& config) {
  constexpr std::string_view kSupported = "MLX affine groups of 3, 4, 6 or 8 bits are supported";
  JsonFields top(root, std::string(name));
  if (!top.Has("quantization")) {
    if (!top.Has("quantization_config")) return absl::OkStatus();
    const json& other = root.at("quantization_config");
    std::string method = "unnamed";
    if (other.is_object() && other.contains("quant_method") && other.at("quant_method").is_string()) {
      method = other.at("quant_method").get<std::string>().substr(0, 80);
    }
    return Unsupported(name, absl::StrCat("quantisation method \"", method, "\""), kSupported);
  }
  const json& object = root.at("quantization");
  if (!object.is_object()) return absl::InvalidArgumentError(absl::StrCat(Text(name), ": field \"quantization\" is not an object"));
  JsonFields fields(object, absl::StrCat(Text(name), ": quantization"));
  const std::string mode = fields.StringOr("mode", "affine");
  Quantization packing;
  packing.bits = static_cast<int>(fields.Int("bits", 1, 64));
  packing.group_size = static_cast<int>(fields.Int("group_size", 1, 65536));
  LIME_RETURN_IF_ERROR(fields.status());
  if (mode != "affine") return Unsupported(name, absl::StrCat("quantisation mode \"", mode.substr(0, 80), "\""), kSupported);
  const bool known_bits = packing.bits == 3 || packing.bits == 4 || packing.bits == 6 || packing.bits == 8;
  if (!known_bits) return Unsupported(name, absl::StrCat("quantisation to ", packing.bits, " bits"), kSupported);
  const bool known_group = packing.group_size == 32 || packing.group_size == 64 || packing.group_size == 128;
  if (!known_group)
    return Unsupported(name, absl::StrCat("a quantisation group of ", packing.group_size), "groups of 32, 64 and 128 are supported");
  config.quantization = packing;
  return absl::OkStatus();
}

absl::StatusOr<std::vector<int32_t>> ParseTokenIds(const json& root, const std::string& key, std::string_view name) {
  std::vector<int32_t> ids;
  const auto found = root.find(key);
  if (found == root.end() || found->is_null()) return ids;
  const json list = found->is_array() ? *found : json::array({*found});
  for (const json& id : list) {
    if (!id.is_number_integer() || id.get<int64_t>() < -1 || id.get<int64_t>() >= kMaxVocab) {
      return absl::InvalidArgumentError(absl::StrCat(Text(name), ": field \"", key, "\" is not a token id"));
    }
    if (id.get<int64_t>() >= 0) ids.push_back(static_cast<int32_t>(id.get<int64_t>()));  // -1 stands for none
  }
  return ids;
}

void ReadGatedGeometry(JsonFields& fields, ModelConfig& config) {
  config.intermediate_size = fields.Int("intermediate_size", 1, kMaxWidth);
  config.num_kv_heads = fields.IntOr("num_key_value_heads", config.num_heads, 1, config.num_heads);
  config.max_positions = fields.IntOr("max_position_embeddings", 2048, 1, kMaxPositions);
  config.norm_eps = fields.DoubleOr("rms_norm_eps", 1e-6, 0.0, 1.0);
  config.tie_embeddings = fields.BoolOr("tie_word_embeddings", false);
}

void ReadFamilyOptions(JsonFields& fields, ModelConfig& config) {
  switch (config.family) {
    case ModelFamily::kLlama:
      config.qkv_bias = config.attention_output_bias = fields.BoolOr("attention_bias", false);
      config.mlp_bias = fields.BoolOr("mlp_bias", false);
      break;
    case ModelFamily::kMistral:
      config.sliding_window = fields.IntOr("sliding_window", 0, 0, kMaxPositions);
      break;
    case ModelFamily::kQwen2:
      config.qkv_bias = true;
      break;
    case ModelFamily::kQwen3:
      config.qk_norm = true;
      config.qkv_bias = config.attention_output_bias = fields.BoolOr("attention_bias", false);
      break;
    case ModelFamily::kOpt:
      break;
  }
}

absl::Status ReadQwenWindow(const json& root, JsonFields& fields, std::string_view name, ModelConfig& config) {
  if (!fields.BoolOr("use_sliding_window", false) || !fields.Has("sliding_window")) return absl::OkStatus();
  const int64_t first_windowed = fields.IntOr("max_window_layers", config.num_layers, 0, kMaxLayers);
  if (first_windowed >= config.num_layers) return absl::OkStatus();
  if (first_windowed > 0 || root.contains("layer_types")) {
    return Unsupported(name, "a sliding window on some of the layers", "a window on all layers or on none is supported");
  }
  config.sliding_window = fields.IntOr("sliding_window", 0, 0, kMaxPositions);
  return absl::OkStatus();
}

absl::Status ReadGated(const json& root, std::string_view name, ModelConfig& config) {
  JsonFields fields(root, std::string(name));
  ReadGatedGeometry(fields, config);
  ReadFamilyOptions(fields, config);
  if (config.family == ModelFamily::kQwen2 || config.family == ModelFamily::kQwen3) {
    LIME_RETURN_IF_ERROR(ReadQwenWindow(root, fields, name, config));
  }
  const std::string activation = fields.StringOr("hidden_act", "silu");
  LIME_RETURN_IF_ERROR(fields.status());
  if (config.num_heads > config.hidden_size)
    return absl::InvalidArgumentError(absl::StrCat(Text(name), ": more attention heads than hidden_size"));
  config.head_dim = fields.IntOr("head_dim", config.hidden_size / config.num_heads, 1, 1024);
  LIME_RETURN_IF_ERROR(fields.status());
  LIME_ASSIGN_OR_RETURN(config.activation, ParseActivation(activation, name));
  LIME_ASSIGN_OR_RETURN(config.rope, ParseRope(root, config.max_positions, name));
  return absl::OkStatus();
}

absl::Status ReadOpt(const json& root, std::string_view name, ModelConfig& config) {
  JsonFields fields(root, std::string(name));
  config.num_kv_heads = config.num_heads;
  config.intermediate_size = fields.Int("ffn_dim", 1, kMaxWidth);
  config.max_positions = fields.IntOr("max_position_embeddings", 2048, 1, kMaxPositions);
  config.position_offset = 2;
  config.tie_embeddings = fields.BoolOr("tie_word_embeddings", true);
  config.norm_affine = fields.BoolOr("layer_norm_elementwise_affine", true);
  config.final_norm = !fields.BoolOr("_remove_final_layer_norm", false);
  config.qkv_bias = config.attention_output_bias = config.mlp_bias = fields.BoolOr("enable_bias", true);
  config.rope.type = RopeType::kNone;
  const bool norm_before = fields.BoolOr("do_layer_norm_before", true);
  const int64_t projected = fields.IntOr("word_embed_proj_dim", config.hidden_size, 1, kMaxWidth);
  const std::string activation = fields.StringOr("activation_function", "relu");
  LIME_RETURN_IF_ERROR(fields.status());
  if (!norm_before) return Unsupported(name, "OPT with do_layer_norm_before false", "the norm before each block is supported");
  if (projected != config.hidden_size)
    return Unsupported(name, "OPT with a word_embed_proj_dim of its own", "one equal to hidden_size is supported");
  config.head_dim = config.hidden_size / config.num_heads;
  LIME_ASSIGN_OR_RETURN(config.activation, ParseActivation(activation, name));
  return absl::OkStatus();
}

absl::Status CheckHeads(const ModelConfig& config, std::string_view name) {
  if (config.num_heads % config.num_kv_heads != 0) {
    return absl::InvalidArgumentError(absl::StrCat(Text(name), ": num_attention_heads ", config.num_heads,
                                                   " is not a multiple of num_key_value_heads ", config.num_kv_heads));
  }
  if (config.head_dim < 1 || config.num_heads * config.head_dim > kMaxWidth) {
    return absl::InvalidArgumentError(
        absl::StrCat(Text(name), ": head_dim ", config.head_dim, " with ", config.num_heads, " heads is out of range"));
  }
  if (config.family == ModelFamily::kOpt && config.head_dim * config.num_heads != config.hidden_size) {
    return absl::InvalidArgumentError(
        absl::StrCat(Text(name), ": hidden_size ", config.hidden_size, " is not a multiple of num_attention_heads ", config.num_heads));
  }
  if (config.rope.type != RopeType::kNone && config.head_dim % 2 != 0) {
    return absl::InvalidArgumentError(absl::StrCat(Text(name), ": head_dim ", config.head_dim, " is odd; rotary embedding needs pairs"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<ModelConfig> ParseModelConfig(std::string_view text, std::string_view name) {
  LIME_ASSIGN_OR_RETURN(const json root, ParseJsonObject(text, name));
  LIME_ASSIGN_OR_RETURN(const Architecture architecture, FindArchitecture(root, name));
  ModelConfig config;
  config.family = architecture.family;
  config.architecture = architecture.name;
  JsonFields fields(root, std::string(name));
  config.num_layers = fields.Int("num_hidden_layers", 1, kMaxLayers);
  config.hidden_size = fields.Int("hidden_size", 1, kMaxWidth);
  config.num_heads = fields.Int("num_attention_heads", 1, 65536);
  config.vocab_size = fields.Int("vocab_size", 1, kMaxVocab);
  LIME_RETURN_IF_ERROR(fields.status());
  LIME_RETURN_IF_ERROR(config.family == ModelFamily::kOpt ? ReadOpt(root, name, config) : ReadGated(root, name, config));
  LIME_RETURN_IF_ERROR(CheckHeads(config, name));
  LIME_RETURN_IF_ERROR(ParseQuantization(root, name, config));
  LIME_ASSIGN_OR_RETURN(const std::vector<int32_t> bos, ParseTokenIds(root, "bos_token_id", name));
  if (!bos.empty()) config.bos_token_id = bos.front();
  LIME_ASSIGN_OR_RETURN(config.eos_token_ids, ParseTokenIds(root, "eos_token_id", name));
  return config;
}

}  // namespace lime
