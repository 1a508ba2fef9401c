#include "absl/strings/str_cat.h"
#include "planner/base/json_fields.h"
#include "planner/base/strings.h"
#include "planner/plan/model/config_parts.h"

namespace lime::config {
namespace {

using nlohmann::json;

// Defaults of transformers' classes.
constexpr int64_t kDefaultWindow = 4096, kDefaultMaxWindowLayers = 28;

absl::Status WrongWindow(std::string_view name, std::string_view what) {
  return Invalid(Text(name), ": ", Text(what));
}

// The types of the model's layers; nullopt if the field is missing.
absl::StatusOr<std::optional<LayerTypes>> StatedTypes(const json& root, int64_t num_layers, std::string_view name) {
  const auto found = root.find("layer_types");
  if (found == root.end() || found->is_null()) return std::nullopt;
  if (!found->is_array()) return WrongWindow(name, "field \"layer_types\" is not an array");
  const auto count = static_cast<int64_t>(found->size());
  if (count < num_layers)
    return WrongWindow(name, absl::StrCat("field \"layer_types\" has ", count, " entries for ", num_layers, " layers"));
  LayerTypes types;
  for (int64_t layer = 0; layer < num_layers; ++layer) {
    const json& type = (*found)[static_cast<size_t>(layer)];
    if (!type.is_string()) return WrongWindow(name, absl::StrCat("field \"layer_types[", layer, "]\" is not a string"));
    if (type == kFullAttention) {
      types.full = true;
    } else if (type == kSlidingAttention) {
      types.sliding = true;
    } else {
      return Unsupported(name, absl::StrCat("layer_types \"", type.get<std::string>().substr(0, 80), "\""),
                         "full_attention and sliding_attention are supported");
    }
  }
  return types;
}

// null means no window. A missing field means the default of the class.
int64_t WindowField(const json& root, JsonFields& fields) {
  return root.contains("sliding_window") ? fields.IntOr("sliding_window", 0, 0, kMaxPositions) : kDefaultWindow;
}

// Qwen2 and Qwen3: layers from max_window_layers on have a window, unless layer_types is stated.
LayerTypes QwenTypes(JsonFields& fields, int64_t window, int64_t num_layers) {
  const int64_t first = fields.IntOr("max_window_layers", kDefaultMaxWindowLayers, 0, INT32_MAX);
  const bool slides = window > 0 && first < num_layers;
  return {.full = !slides || first > 0, .sliding = slides};
}

}  // namespace

absl::StatusOr<LayerTypes> ReadLayerTypes(const json& root, std::string_view name, const ModelConfig& config) {
  JsonFields fields(root, std::string(name));
  LIME_ASSIGN_OR_RETURN(const std::optional<LayerTypes> stated, StatedTypes(root, config.num_layers, name));
  const bool qwen = config.family == ModelFamily::kQwen2 || config.family == ModelFamily::kQwen3;
  int64_t window = 0;
  if (config.family == ModelFamily::kMistral || (qwen && fields.BoolOr("use_sliding_window", false))) window = WindowField(root, fields);
  const LayerTypes implied = qwen ? QwenTypes(fields, window, config.num_layers) : LayerTypes{.full = window == 0, .sliding = window > 0};
  LIME_RETURN_IF_ERROR(fields.status());
  LayerTypes layers = stated.value_or(implied);
  layers.window = window;
  if (layers.sliding && window == 0) {
    return Unsupported(name, "layer_types with sliding_attention but without a sliding_window in use",
                       "a window of stated length on all layers, or full_attention, is supported");
  }
  if (!qwen && layers.full && window > 0) {
    return Unsupported(name, absl::StrCat("layer_types with full_attention beside a sliding_window of ", window),
                       "a window on all layers or on none is supported");
  }
  return layers;
}

absl::Status SetWindow(const LayerTypes& layers, std::string_view name, ModelConfig& config) {
  config.sliding_window = 0;
  if (!layers.sliding || layers.window >= config.max_positions) return absl::OkStatus();
  if (layers.full) return Unsupported(name, "a sliding window on some of the layers", "a window on all layers or on none is supported");
  config.sliding_window = layers.window;
  return absl::OkStatus();
}

}  // namespace lime::config
