#include "planner/plan/model/model_config.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"
#include "planner/base/json_fields.h"
#include "planner/base/json_text.h"
#include "planner/base/strings.h"
#include "planner/plan/model/config_parts.h"
#include "planner/plan/model/token_ids.h"

namespace lime {
namespace {

using config::kMaxPositions;
using config::Unsupported;
using nlohmann::json;

// Bounds that keep every product of sizes far below 2^63 and every id in 32 bits.
constexpr int64_t kMaxLayers = 4096;
constexpr int64_t kMaxWidth = int64_t{1} << 20;
constexpr double kMaxEps = 1e6;

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

// Ignores case: older converters write LLaMAForCausalLM.
const Architecture* FindName(std::string_view spelled) {
  for (const Architecture& known : kArchitectures) {
    if (absl::EqualsIgnoreCase(Text(known.name), Text(spelled))) return &known;
  }
  return nullptr;
}

const Architecture* FindModelType(const json& root) {
  const auto type = root.find("model_type");
  for (const Architecture& known : kArchitectures) {
    if (type != root.end() && type->is_string() && absl::EqualsIgnoreCase(Text(known.model_type), type->get_ref<const std::string&>()))
      return &known;
  }
  return nullptr;
}

// As in transformers, model_type decides if it is stated, and must name a known family. Else the
// first known name in "architectures" decides. A list without a known name is an error.
absl::StatusOr<Architecture> FindArchitecture(const json& root, std::string_view name) {
  const auto list = root.find("architectures");
  const bool lists = list != root.end() && list->is_array() && !list->empty() && list->front().is_string();
  const Architecture* by_name = nullptr;
  for (const json& spelled : lists ? *list : json::array()) {
    if (by_name == nullptr && spelled.is_string()) by_name = FindName(spelled.get_ref<const std::string&>());
  }
  if (lists && by_name == nullptr) {
    return Unsupported(name, absl::StrCat("architecture \"", list->front().get<std::string>().substr(0, 80), "\""),
                       kSupportedArchitectures);
  }
  const auto type = root.find("model_type");
  if (type != root.end() && type->is_string() && !type->get_ref<const std::string&>().empty()) {
    if (const Architecture* const by_type = FindModelType(root)) return *by_type;
    return Unsupported(name, absl::StrCat("model_type \"", type->get<std::string>().substr(0, 80), "\""), kSupportedArchitectures);
  }
  if (by_name != nullptr) return *by_name;
  return Invalid(Text(name), ": names no architecture; \"architectures\" must hold one, such as [\"LlamaForCausalLM\"]");
}

absl::StatusOr<Activation> ParseActivation(const std::string& spelled, std::string_view name) {
  if (spelled == "silu" || spelled == "swish") return Activation::kSilu;
  if (spelled == "relu") return Activation::kRelu;
  return Unsupported(name, absl::StrCat("activation \"", spelled.substr(0, 80), "\""), "silu and relu are supported");
}

// MLX writes {"group_size", "bits"} as "quantization". Other methods use "quantization_config".
absl::Status ParseQuantization(const json& root, std::string_view name, ModelConfig& config) {
  constexpr std::string_view kSupported = "MLX affine groups of 3, 4, 6 or 8 bits are supported";
  JsonFields top(root, std::string(name));
  std::string method = "unnamed";
  if (top.Has("quantization_config")) {
    const json& other = root.at("quantization_config");
    if (other.is_object() && other.contains("quant_method") && other.at("quant_method").is_string())
      method = other.at("quant_method").get<std::string>().substr(0, 80);
    const bool of_mlx = top.Has("quantization") && (method == "unnamed" || method == "mlx" || method == "affine");
    if (!of_mlx) return Unsupported(name, absl::StrCat("quantisation method \"", method, "\""), kSupported);
  }
  if (!top.Has("quantization")) return absl::OkStatus();
  const json& object = root.at("quantization");
  if (!object.is_object()) return Invalid(Text(name), ": field \"quantization\" is not an object");
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

// Values that the class in transformers uses for a missing field. A null field is derived from
// others.
struct ClassDefaults {
  int64_t positions = 2048;
  int64_t kv_heads = 0;  // 0: as many as heads
  int64_t head_dim = 0;  // 0: hidden_size / heads
};

ClassDefaults DefaultsOf(ModelFamily family) {
  switch (family) {
    case ModelFamily::kMistral:
      return {.positions = 131072, .kv_heads = 8};
    case ModelFamily::kQwen2:
      return {.positions = 32768, .kv_heads = 32};
    case ModelFamily::kQwen3:
      return {.positions = 32768, .kv_heads = 32, .head_dim = 128};
    case ModelFamily::kLlama:
    case ModelFamily::kOpt:
      return {};
  }
  return {};
}

void ReadGatedGeometry(const json& root, JsonFields& fields, ModelConfig& config) {
  const ClassDefaults defaults = DefaultsOf(config.family);
  const auto missing = [&](const char* key, int64_t of_class, int64_t implied) {
    return of_class > 0 && !root.contains(key) ? of_class : implied;
  };
  config.intermediate_size = fields.Int("intermediate_size", 1, kMaxWidth);
  config.num_kv_heads =
      fields.IntOr("num_key_value_heads", missing("num_key_value_heads", defaults.kv_heads, config.num_heads), 1, config.num_heads);
  config.head_dim = fields.IntOr("head_dim", missing("head_dim", defaults.head_dim, config.hidden_size / config.num_heads), 1, 1024);
  config.max_positions = fields.IntOr("max_position_embeddings", defaults.positions, 1, kMaxPositions);
  config.norm_eps = fields.DoubleOr("rms_norm_eps", 1e-6, 0.0, kMaxEps);
  config.tie_embeddings = fields.BoolOr("tie_word_embeddings", false);
}

void ReadBiases(JsonFields& fields, ModelConfig& config) {
  switch (config.family) {
    case ModelFamily::kLlama:
      config.qkv_bias = config.attention_output_bias = fields.BoolOr("attention_bias", false);
      config.mlp_bias = fields.BoolOr("mlp_bias", false);
      break;
    case ModelFamily::kQwen2:
      config.qkv_bias = true;
      break;
    case ModelFamily::kQwen3:
      config.qk_norm = true;
      config.qkv_bias = config.attention_output_bias = fields.BoolOr("attention_bias", false);
      break;
    case ModelFamily::kMistral:
    case ModelFamily::kOpt:
      break;
  }
}

absl::Status ReadGated(const json& root, std::string_view name, ModelConfig& config) {
  if (config.num_heads > config.hidden_size) return Invalid(Text(name), ": num_attention_heads is larger than hidden_size");
  if (root.contains("rms_norm_eps") && root.at("rms_norm_eps").is_null())
    return Invalid(Text(name), ": field \"rms_norm_eps\" is null; state it, or leave it out for 1e-6");
  JsonFields fields(root, std::string(name));
  ReadGatedGeometry(root, fields, config);
  ReadBiases(fields, config);
  const std::string activation = fields.StringOr("hidden_act", "silu");
  LIME_RETURN_IF_ERROR(fields.status());
  LIME_ASSIGN_OR_RETURN(config.activation, ParseActivation(activation, name));
  LIME_ASSIGN_OR_RETURN(const config::LayerTypes layers, config::ReadLayerTypes(root, name, config));
  LIME_RETURN_IF_ERROR(config::ReadRope(root, layers, name, config));
  return config::SetWindow(layers, name, config);
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
    return Unsupported(name, "OPT with another word_embed_proj_dim than hidden_size", "one equal to hidden_size is supported");
  config.head_dim = config.hidden_size / config.num_heads;
  LIME_ASSIGN_OR_RETURN(config.activation, ParseActivation(activation, name));
  return absl::OkStatus();
}

absl::Status CheckHeads(const ModelConfig& config, std::string_view name) {
  if (config.num_heads % config.num_kv_heads != 0) {
    return Invalid(Text(name), ": num_attention_heads ", config.num_heads, " is not a multiple of num_key_value_heads ",
                   config.num_kv_heads);
  }
  if (config.head_dim < 1 || config.num_heads * config.head_dim > kMaxWidth) {
    return Invalid(Text(name), ": head_dim ", config.head_dim, " with ", config.num_heads, " heads is out of range");
  }
  if (config.family == ModelFamily::kOpt && config.head_dim * config.num_heads != config.hidden_size) {
    return Invalid(Text(name), ": hidden_size ", config.hidden_size, " is not a multiple of num_attention_heads ", config.num_heads);
  }
  if (config.rope.type != RopeType::kNone && config.head_dim % 2 != 0) {
    return Invalid(Text(name), ": head_dim ", config.head_dim, " is odd; rotary embedding needs pairs");
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status config::Unsupported(std::string_view name, std::string_view what, std::string_view supported) {
  return absl::UnimplementedError(absl::StrCat(Text(name), ": ", Text(what), " is not supported; ", Text(supported)));
}

absl::StatusOr<ModelConfig> ParseModelConfig(std::string_view text, std::string_view name) {
  LIME_ASSIGN_OR_RETURN(const json root, ParsePythonJsonObject(text, name));
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
  LIME_RETURN_IF_ERROR(config::RefuseOtherComputations(root, name, config));
  LIME_RETURN_IF_ERROR(ParseQuantization(root, name, config));
  LIME_ASSIGN_OR_RETURN(const std::vector<int32_t> bos, ParseTokenIds(root, "bos_token_id", name));
  if (!bos.empty()) config.bos_token_id = bos.front();
  LIME_ASSIGN_OR_RETURN(config.eos_token_ids, ParseTokenIds(root, "eos_token_id", name));
  return config;
}

}  // namespace lime
