// Reads what only configurations of Gemma 4 have.
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "planner/base/json_fields.h"
#include "planner/base/strings.h"
#include "planner/plan/model/config_parts.h"
#include "planner/plan/model/token_ids.h"

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

}  // namespace

absl::Status ReadLayerInputs(const json& root, std::string_view name, ModelConfig& config) {
  constexpr int64_t kOfClass = 256;
  JsonFields fields(root, std::string(name));
  const auto stated = root.find("hidden_size_per_layer_input");
  const bool none = stated != root.end() && stated->is_null();
  config.layer_inputs = fields.IntOr("hidden_size_per_layer_input", none ? 0 : kOfClass, 0, kMaxWidth);
  const int64_t ids = fields.IntOr("vocab_size_per_layer_input", config.vocab_size, 1, kMaxVocab);
  LIME_RETURN_IF_ERROR(fields.status());
  if (config.layer_inputs == 0) return absl::OkStatus();
  config.layer_input_cols = config.layer_inputs * config.num_layers();
  if (ids != config.vocab_size)
    return Unsupported(name, absl::StrCat("vocab_size_per_layer_input ", ids),
                       absl::StrCat("vocab_size (", config.vocab_size, ") is supported"));
  if (config.layer_input_cols > kMaxWidth)
    return Invalid(Text(name), ": ", config.num_layers(), " layers with ", config.layer_inputs, " columns of their own are out of range");
  if (config.experts) return Unsupported(name, "hidden_size_per_layer_input with experts", "0 is supported with them");
  return absl::OkStatus();
}

// A layer takes the keys and values of the last layer of its type that has its own.
absl::Status ReadSharedKv(const json& root, std::string_view name, const LayerTypes& types, ModelConfig& config) {
  constexpr const char *kShared = "num_kv_shared_layers", *kDouble = "use_double_wide_mlp";
  JsonFields fields(root, std::string(name));
  const int64_t shared = fields.IntOr(kShared, 0, 0, config.num_layers() - 1);
  const bool doubles = fields.BoolOr(kDouble, false);
  LIME_RETURN_IF_ERROR(fields.status());
  if (shared == 0) return absl::OkStatus();
  if (!fields.Has(kDouble)) return Invalid(Text(name), ": field \"", kDouble, "\" is missing, beside \"", kShared, "\"");
  const size_t first = config.layers.size() - static_cast<size_t>(shared);
  for (size_t index = first; index < config.layers.size(); ++index) {
    LayerConfig& layer = config.layers[index];
    size_t from = first;
    while (from > 0 && types.of_layer[from - 1] != types.of_layer[index]) --from;
    if (from == 0) return Invalid(Text(name), ": ", kShared, " ", shared, " leaves layer ", index, " without a layer to take K and V from");
    LayerConfig& owner = config.layers[from - 1];
    if (owner.shared_kv < 0) {
      owner.shared_kv = static_cast<int32_t>(config.shared_kv_cols.size());
      config.shared_kv_cols.push_back(owner.num_kv_heads * owner.head_dim);
    }
    layer.shared_kv = owner.shared_kv, layer.takes_kv = true;
    if (doubles) layer.intermediate_size *= 2;
  }
  if (config.MostIntermediate() > kMaxWidth)
    return Invalid(Text(name), ": intermediate_size is out of range where ", kDouble, " doubles it");
  return absl::OkStatus();
}

absl::Status ReadGlobalHeads(const json& root, std::string_view name, const LayerTypes& types, const ModelConfig& config,
                             LayerConfig& full) {
  JsonFields fields(root, std::string(name));
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
