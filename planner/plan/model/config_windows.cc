#include <algorithm>

#include "absl/strings/str_cat.h"
#include "planner/base/json_fields.h"
#include "planner/base/strings.h"
#include "planner/plan/model/config_parts.h"

namespace lime::config {
namespace {

using nlohmann::json;

constexpr int64_t kDefaultMaxWindowLayers = 28;  // of transformers' classes
constexpr int64_t kDefaultInterval = 4;

absl::Status WrongWindow(std::string_view name, std::string_view what) {
  return Invalid(Text(name), ": ", Text(what));
}

// The second kind of layers that the family may have, beside full ones.
LayerType OtherType(const Family& family) {
  return family.layers == LayerPattern::kLinear ? LayerType::kLinear : LayerType::kSliding;
}

// The types of the model's layers; empty if the field is missing.
absl::StatusOr<std::vector<LayerType>> StatedTypes(const json& root, const Family& family, int64_t num_layers, std::string_view name) {
  std::vector<LayerType> types;
  const auto found = root.find("layer_types");
  if (found == root.end() || found->is_null()) return types;
  if (!found->is_array()) return WrongWindow(name, "field \"layer_types\" is not an array");
  const auto count = static_cast<int64_t>(found->size());
  if (count < num_layers)
    return WrongWindow(name, absl::StrCat("field \"layer_types\" has ", count, " entries for ", num_layers, " layers"));
  const LayerType other = OtherType(family);
  for (int64_t layer = 0; layer < num_layers; ++layer) {
    const json& type = (*found)[static_cast<size_t>(layer)];
    if (!type.is_string()) return WrongWindow(name, absl::StrCat("field \"layer_types[", layer, "]\" is not a string"));
    if (type != NameOf(LayerType::kFull) && type != NameOf(other)) {
      return Unsupported(name, absl::StrCat("layer_types \"", type.get<std::string>().substr(0, 80), "\""),
                         absl::StrCat(Text(NameOf(LayerType::kFull)), " and ", Text(NameOf(other)), " are supported"));
    }
    types.push_back(type == NameOf(other) ? other : LayerType::kFull);
  }
  return types;
}

// null means no window. A missing field means the default of the class.
int64_t WindowField(const json& root, const Family& family, JsonFields& fields) {
  return root.contains("sliding_window") ? fields.IntOr("sliding_window", 0, 0, kMaxPositions) : family.defaults.window;
}

int64_t ReadWindow(const json& root, const Family& family, JsonFields& fields) {
  const bool has_window = family.layers == LayerPattern::kWindow || family.layers == LayerPattern::kWindowExcept ||
                          (family.layers == LayerPattern::kWindowFrom && fields.BoolOr("use_sliding_window", false));
  return has_window ? WindowField(root, family, fields) : 0;
}

// The type of each layer if layer_types is not stated.
std::vector<LayerType> ImpliedTypes(const Family& family, int64_t window, int64_t num_layers, JsonFields& fields) {
  std::vector<LayerType> types(static_cast<size_t>(num_layers), LayerType::kFull);
  if (family.layers == LayerPattern::kWindow && window > 0) std::ranges::fill(types, LayerType::kSliding);
  if (family.layers == LayerPattern::kWindowFrom) {
    const int64_t first = fields.IntOr("max_window_layers", kDefaultMaxWindowLayers, 0, INT32_MAX);
    for (int64_t layer = first; window > 0 && layer < num_layers; ++layer) types[static_cast<size_t>(layer)] = LayerType::kSliding;
  }
  if (family.layers == LayerPattern::kWindowExcept) {
    const int64_t interval = fields.IntOr("sliding_window_pattern", family.defaults.full_every, 1, INT32_MAX);
    for (int64_t layer = 0; window > 0 && interval > 0 && layer < num_layers; ++layer) {
      if ((layer + 1) % interval != 0) types[static_cast<size_t>(layer)] = LayerType::kSliding;
    }
  }
  if (family.layers == LayerPattern::kLinear) {
    const int64_t interval = fields.IntOr("full_attention_interval", kDefaultInterval, 1, INT32_MAX);
    for (int64_t layer = 0; interval > 0 && layer < num_layers; ++layer) {
      if ((layer + 1) % interval != 0) types[static_cast<size_t>(layer)] = LayerType::kLinear;
    }
  }
  return types;
}

}  // namespace

std::string_view NameOf(LayerType type) {
  switch (type) {
    case LayerType::kFull:
      return "full_attention";
    case LayerType::kSliding:
      return "sliding_attention";
    case LayerType::kLinear:
      return "linear_attention";
  }
  return "?";
}

bool LayerTypes::Have(LayerType type) const {
  return std::ranges::find(of_layer, type) != of_layer.end();
}

absl::StatusOr<LayerTypes> ReadLayerTypes(const json& root, std::string_view name, const Family& family, int64_t num_layers) {
  JsonFields fields(root, std::string(name));
  LayerTypes layers;
  LIME_ASSIGN_OR_RETURN(layers.of_layer, StatedTypes(root, family, num_layers, name));
  layers.window = ReadWindow(root, family, fields);
  std::vector<LayerType> implied = ImpliedTypes(family, layers.window, num_layers, fields);
  LIME_RETURN_IF_ERROR(fields.status());
  if (layers.of_layer.empty()) layers.of_layer = std::move(implied);
  if (layers.Have(LayerType::kSliding) && layers.window == 0) {
    return Unsupported(name, "layer_types with sliding_attention but without a sliding_window in use",
                       "a window of stated length on all layers, or full_attention, is supported");
  }
  if (family.layers == LayerPattern::kWindow && layers.Have(LayerType::kFull) && layers.window > 0) {
    return Unsupported(name, absl::StrCat("layer_types with full_attention beside a sliding_window of ", layers.window),
                       "a window on all layers or on none is supported");
  }
  if (!layers.Have(LayerType::kFull) && !layers.Have(LayerType::kSliding)) {
    return Unsupported(name, "a model without a layer of full_attention", "one or more of them are supported");
  }
  return layers;
}

void SetWindows(const LayerTypes& layers, ModelConfig& config) {
  if (layers.window >= config.max_positions) return;
  for (size_t layer = 0; layer < config.layers.size(); ++layer) {
    if (layers.of_layer[layer] == LayerType::kSliding) config.layers[layer].window = layers.window;
  }
}

}  // namespace lime::config
