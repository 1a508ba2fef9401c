// Reads what only configurations of Gemma 4 have.
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "planner/base/json_fields.h"
#include "planner/base/strings.h"
#include "planner/plan/model/config_parts.h"

namespace lime::config {
namespace {

using nlohmann::json;

constexpr int64_t kGlobalHeadDim = 512;  // of the class in transformers
constexpr const char* kPerLayer = "per_layer_config";

struct KvHeads {
  int64_t count = 0;
  int64_t dim = 0;
  friend bool operator==(const KvHeads&, const KvHeads&) = default;
};

// Fields of one layer replace those of all layers.
absl::StatusOr<KvHeads> HeadsOf(const json& one, const std::string& where, const ModelConfig& config, KvHeads heads) {
  if (!one.is_object()) return Invalid(where, " is not an object");
  for (const auto& [key, value] : one.items()) {
    const bool same = key == "num_attention_heads" && value == config.num_heads;
    if (same || value.is_null() || key == "head_dim" || key == "num_key_value_heads") continue;
    return Unsupported(where, absl::StrCat("\"", key.substr(0, 80), "\" of a single layer"),
                       "head_dim and num_key_value_heads are supported");
  }
  JsonFields fields(one, where);
  heads.dim = fields.IntOr("head_dim", heads.dim, 1, kMaxHeadDim);
  heads.count = fields.IntOr("num_key_value_heads", heads.count, 1, config.num_heads);
  LIME_RETURN_IF_ERROR(fields.status());
  return heads;
}

// Newer files: an object by the number of the layer. All layers of a type must have the same heads.
absl::Status ReadByLayer(const json& layers, std::string_view name, const LayerTypes& types, const ModelConfig& config, KvHeads common,
                         LayerConfig& full) {
  KvHeads of_full = common;
  bool first = true;
  for (const auto& [key, value] : layers.items()) {
    int64_t layer = -1;
    if (!absl::SimpleAtoi(key, &layer) || layer < 0 || absl::StrCat(layer) != key)
      return Invalid(Text(name), ": field \"", kPerLayer, "\" has the key \"", Text(key).substr(0, 80),
                     "\", which is no number of a layer");
  }
  for (size_t layer = 0; layer < types.of_layer.size(); ++layer) {
    KvHeads heads = common;
    if (const auto found = layers.find(absl::StrCat(layer)); found != layers.end()) {
      LIME_ASSIGN_OR_RETURN(heads, HeadsOf(*found, absl::StrCat(Text(name), ": ", kPerLayer, "[", layer, "]"), config, common));
    }
    const bool is_full = types.of_layer[layer] == LayerType::kFull;
    if (is_full && first) of_full = heads, first = false;
    if (heads == (is_full ? of_full : common)) continue;
    return Unsupported(name, absl::StrCat(kPerLayer, " with other heads in layer ", layer, " than in other layers of its type"),
                       "the same heads in all layers of a type are supported");
  }
  full.num_kv_heads = of_full.count, full.head_dim = of_full.dim;
  return absl::OkStatus();
}

// Without the field, the class has such inputs.
absl::Status RefusePerLayerInputs(JsonFields& fields, std::string_view name) {
  constexpr int64_t kPerLayerInputs = 256;
  const int64_t cols = fields.IntOr("hidden_size_per_layer_input", kPerLayerInputs, 0, kMaxWidth);
  LIME_RETURN_IF_ERROR(fields.status());
  if (cols == 0) return absl::OkStatus();
  return Unsupported(name, absl::StrCat("hidden_size_per_layer_input ", cols),
                     "models without an embedding of every layer (hidden_size_per_layer_input 0) are supported");
}

}  // namespace

absl::Status ReadGlobalHeads(const json& root, std::string_view name, const LayerTypes& types, const ModelConfig& config,
                             LayerConfig& full) {
  JsonFields fields(root, std::string(name));
  LIME_RETURN_IF_ERROR(RefusePerLayerInputs(fields, name));
  full.keys_are_values = fields.BoolOr("attention_k_eq_v", false);
  const KvHeads common{.count = full.num_kv_heads, .dim = full.head_dim};
  full.head_dim = fields.IntOr("global_head_dim", kGlobalHeadDim, 1, kMaxHeadDim);
  if (full.keys_are_values) full.num_kv_heads = fields.IntOr("num_global_key_value_heads", common.count, 1, config.num_heads);
  LIME_RETURN_IF_ERROR(fields.status());
  if (!fields.Has(kPerLayer) || root.at(kPerLayer).empty()) return absl::OkStatus();
  if (!root.at(kPerLayer).is_object()) return Invalid(Text(name), ": field \"", kPerLayer, "\" is not an object");
  return ReadByLayer(root.at(kPerLayer), name, types, config, common, full);
}

}  // namespace lime::config
