#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "planner/base/json_fields.h"
#include "planner/base/strings.h"
#include "planner/plan/model/config_parts.h"

namespace lime::config {
namespace {

using nlohmann::json;

constexpr const char* kQueryBeta = "llama_4_scaling_beta";
constexpr size_t kMaxListed = 65536;  // layers in a list
constexpr double kLowestTheta = 1.0, kHighestTheta = 1e15;

std::string Json(const json& value) {
  return value.dump(-1, ' ', true, json::error_handler_t::replace);
}

double YarnScale(double factor, double multiplier) {
  return factor <= 1 ? 1.0 : 0.1 * multiplier * std::log(factor) + 1.0;
}

absl::StatusOr<RopeType> ParseRopeType(const std::string& spelled, std::string_view name, const Family& family) {
  if (family.global_heads && spelled == "proportional") return RopeType::kProportional;
  if (family.long_rope && (spelled == "longrope" || spelled == "su")) return RopeType::kLongRope;  // its older name
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

// Reads one of the two fields as an object. Empty if it is missing, null or empty.
absl::StatusOr<json> RopeField(const json& root, const char* key, std::string_view name) {
  const auto found = root.find(key);
  if (found == root.end() || found->is_null()) return json::object();
  if (found->is_object()) return *found;
  return Invalid(Text(name), ": field \"", key, "\" is not an object");
}

// If every value is an object, the keys are layer types. Returns the object for the model's layers.
absl::StatusOr<json> OfLayers(json field, const char* key, const LayerTypes& layers, std::string_view name) {
  const auto objects = std::ranges::count_if(field, [](const json& value) { return value.is_object(); });
  if (objects == 0) return field;
  if (objects < static_cast<ptrdiff_t>(field.size()))
    return Unsupported(name, absl::StrCat(key, " with objects among other values"), "one set, or one by layer type, is supported");
  std::optional<json> used;
  for (const LayerType layer_type : {LayerType::kFull, LayerType::kSliding}) {
    if (!layers.Have(layer_type)) continue;
    const std::string type(NameOf(layer_type));
    if (!field.contains(type))
      return Unsupported(name, absl::StrCat(key, " by layer type without \"", type, "\""), "layers of the model are of that type");
    if (used && *used != field[type])
      return Unsupported(name, absl::StrCat(key, " that differ by layer type"), "the same for all layers are supported");
    used = field[type];
  }
  return used ? *std::move(used) : json::object();
}

// "rope_type", called "type" in older files. Empty if neither is present.
absl::StatusOr<std::string> StatedType(const json& object, std::string_view where) {
  JsonFields fields(object, std::string(where));
  const std::string type = fields.StringOr("rope_type", ""), older = fields.StringOr("type", type);
  LIME_RETURN_IF_ERROR(fields.status());
  if (type.empty() || type == older) return older;
  if (older.empty()) return type;
  return Unsupported(where, absl::StrCat("\"type\" ", Json(older), " beside \"rope_type\" ", Json(type)), "state the same, or only one");
}

// Fails if rope_parameters has a value that rope_scaling replaces and that would change the result.
absl::Status CheckReplaced(const json& parameters, const json& scaling, double theta, std::string_view name) {
  for (const auto& [key, value] : parameters.items()) {
    if (key == "type" || key == "rope_type" || value.is_null() || (key == "partial_rotary_factor" && value == 1.0)) continue;
    const auto stated = scaling.find(key);
    const bool agrees = stated != scaling.end() ? *stated == value : key == "rope_theta" && value == theta;
    if (agrees) continue;
    return Unsupported(name, absl::StrCat("rope_scaling beside a rope_parameters with another ", Json(key.substr(0, 80))),
                       absl::StrCat("rope_scaling replaces rope_parameters; write ", Json(key.substr(0, 80)), ": ",
                                    Json(value).substr(0, 80), " in it, or state both in rope_parameters alone"));
  }
  return absl::OkStatus();
}

// Whether these layers are those whose rotation the family states apart.
bool RotateApart(const LayerTypes& layers, const Family& family) {
  return family.sliding_theta > 0 && !layers.Have(LayerType::kFull);
}

// Older files have rope_scaling, newer files rope_parameters. As in transformers, rope_scaling is
// used unless it is empty. It is an error if that loses a value of rope_parameters. `theta` is the
// default of both.
absl::StatusOr<json> FindRope(const json& root, const LayerTypes& layers, const Family& family, double theta, std::string_view name,
                              const char*& key) {
  const auto read = [&](const char* field) -> absl::StatusOr<json> {
    LIME_ASSIGN_OR_RETURN(json value, RopeField(root, field, name));
    return OfLayers(std::move(value), field, layers, name);
  };
  LIME_ASSIGN_OR_RETURN(json parameters, read("rope_parameters"));
  if (RotateApart(layers, family)) {
    key = "rope_parameters";
    return parameters;
  }
  LIME_ASSIGN_OR_RETURN(json scaling, read("rope_scaling"));
  key = scaling.empty() && !parameters.empty() ? "rope_parameters" : "rope_scaling";
  if (scaling.empty() || parameters.empty()) return scaling.empty() ? parameters : scaling;
  LIME_ASSIGN_OR_RETURN(const std::string replaced, StatedType(parameters, absl::StrCat(Text(name), ": rope_parameters")));
  LIME_ASSIGN_OR_RETURN(const std::string type, StatedType(scaling, absl::StrCat(Text(name), ": rope_scaling")));
  if (!replaced.empty() && replaced != "default" && replaced != type)
    return Unsupported(name, "rope_scaling beside a rope_parameters with another \"rope_type\"", "state the scaling once");
  LIME_RETURN_IF_ERROR(CheckReplaced(parameters, scaling, theta, name));
  return scaling;
}

// Refuses the numbers of a scaling without a type, because their meaning is unknown.
absl::Status RefuseUntyped(const JsonFields& fields, std::string_view where) {
  for (const char* key : {"factor", "short_factor", "long_factor", "low_freq_factor", "high_freq_factor", "attention_factor", "beta_fast",
                          "beta_slow", "mscale", "mscale_all_dim", "original_max_position_embeddings"}) {
    if (!fields.Has(key)) continue;
    return Invalid(Text(where), ": states \"", key,
                   "\", but no \"rope_type\" says which scaling the field is for; add "
                   "a type, such as \"linear\" or \"yarn\", or remove the field");
  }
  return absl::OkStatus();
}

void ReadYarn(JsonFields& fields, int64_t stated_positions, RopeConfig& rope) {
  // As in transformers: the default factor is how much the context was extended.
  const double implied_factor = static_cast<double>(stated_positions) / static_cast<double>(rope.original_max_position);
  rope.factor = fields.DoubleOr("factor", implied_factor, 1e-6, kMaxFactor);
  const double mscale = fields.DoubleOr("mscale", 0.0, 0.0, kMaxFactor);
  const double mscale_all = fields.DoubleOr("mscale_all_dim", 0.0, 0.0, kMaxFactor);
  const double implied =
      mscale > 0 && mscale_all > 0 ? YarnScale(rope.factor, mscale) / YarnScale(rope.factor, mscale_all) : YarnScale(rope.factor, 1.0);
  rope.attention_factor = fields.DoubleOr("attention_factor", implied, 1e-6, kMaxFactor);
}

// The positions that the scaling reaches, if they are more than the file states. Users add a factor
// without changing the number.
int64_t ReachedPositions(const RopeConfig& rope, int64_t stated) {
  if (rope.type != RopeType::kLinear && rope.type != RopeType::kDynamic && rope.type != RopeType::kYarn) return stated;
  const double reached = std::floor(rope.factor * static_cast<double>(rope.original_max_position));
  return std::max(stated, static_cast<int64_t>(std::min(reached, static_cast<double>(kMaxPositions))));
}

// The share of a head that rotates.
absl::StatusOr<double> RotatedShare(JsonFields fields, double fallback, const Family& family, std::string_view name) {
  const double share = fields.DoubleOr("partial_rotary_factor", fallback, 0.0, kMaxFactor);
  LIME_RETURN_IF_ERROR(fields.status());
  if (share == 1.0 || (family.rotates_part_of_heads && share > 0 && share < 1)) return share;
  return Unsupported(name, absl::StrCat("partial_rotary_factor ", share), "rotary embedding of whole heads (1.0) is supported");
}

// As in transformers, a part of a dimension does not count.
absl::StatusOr<int64_t> RotatedDimensions(double share, int64_t head_dim, std::string_view name) {
  const auto dims = static_cast<int64_t>(static_cast<double>(head_dim) * share);
  if (share == 1.0 && head_dim % 2 != 0) return Invalid(Text(name), ": head_dim ", head_dim, " is odd; rotary embedding needs pairs");
  if (dims < 2 || dims % 2 != 0) {
    return Invalid(Text(name), ": partial_rotary_factor ", share, " rotates ", dims, " of ", head_dim,
                   " dimensions of a head; rotary embedding needs pairs");
  }
  return dims;
}

// A field that states the dimensions instead of their share.
absl::Status ReadRotatedDimensions(JsonFields& fields, const char* key, int64_t head_dim, int64_t& dims) {
  dims = fields.IntOr(key, dims, 2, head_dim);
  LIME_RETURN_IF_ERROR(fields.status());
  if (dims % 2 == 0) return absl::OkStatus();
  return Invalid(fields.where(), ": field \"", key, "\" = ", dims, " is odd; rotary embedding needs pairs");
}

// Refuses fields by which the code of other families changes a scaling.
absl::Status RefuseOtherScalings(const json& object, const Family& family, RopeType type, std::string_view where) {
  for (const char* key : {kQueryBeta, "alpha", "short_factor", "long_factor", "short_mscale", "long_mscale"}) {
    const auto found = object.find(key);
    if (found == object.end() || found->is_null() || (found->is_number() && found->get<double>() == 0)) continue;
    if (key == kQueryBeta && family.scales_queries) continue;
    if (type == RopeType::kLongRope && std::string_view(key).ends_with("_factor")) continue;
    return Unsupported(where, absl::StrCat("\"", key, "\""), "the scalings of Llama, Mistral, Qwen2 and Qwen3 are supported");
  }
  return absl::OkStatus();
}

// How fast queries grow with the position. The formula needs the positions of the training.
absl::Status ReadQueryBeta(JsonFields& fields, RopeConfig& rope) {
  constexpr const char* kOriginal = "original_max_position_embeddings";
  rope.query_beta = fields.DoubleOr(kQueryBeta, 0.0, 0.0, kMaxFactor);
  if (rope.query_beta > 0) rope.original_max_position = fields.Int(kOriginal, 1, kMaxPositions);
  return fields.status();
}

// As in transformers: the factor of cos and sin follows from how much the context was extended.
absl::Status ReadLongRope(JsonFields& top, JsonFields& fields, const ModelConfig& config, RopeConfig& rope) {
  constexpr const char* kOriginal = "original_max_position_embeddings";
  constexpr int64_t kOriginalOfClass = 4096;
  const int64_t stated = top.IntOr(kOriginal, fields.IntOr(kOriginal, kOriginalOfClass, 2, kMaxPositions), 2, kMaxPositions);
  const int64_t beside = fields.IntOr(kOriginal, stated, 2, kMaxPositions);
  const double extension = static_cast<double>(config.max_positions) / static_cast<double>(stated);
  const double factor = fields.DoubleOr("factor", extension, 1e-6, kMaxFactor);
  const double implied = extension <= 1 ? 1.0 : std::sqrt(1 + std::log(extension) / std::log(static_cast<double>(stated)));
  rope.attention_factor = fields.DoubleOr("attention_factor", implied, 1e-6, kMaxFactor);
  const size_t pairs = static_cast<size_t>(rope.dims / 2);
  for (const auto& [key, factors] : {std::pair("short_factor", &rope.short_factors), std::pair("long_factor", &rope.long_factors)}) {
    if (fields.status().ok() && !fields.Has(key)) return Invalid(fields.where(), ": field \"", key, "\" is missing");
    *factors = fields.Doubles(key, 1e-6, kMaxFactor, kMaxHeadDim);
    if (fields.status().ok() && factors->size() != pairs)
      return Invalid(fields.where(), ": field \"", key, "\" has ", factors->size(), " factors for ", pairs, " frequencies");
  }
  LIME_RETURN_IF_ERROR(top.status());
  LIME_RETURN_IF_ERROR(fields.status());
  if (beside != stated) return Invalid(fields.where(), ": ", kOriginal, " ", beside, " beside ", stated, "; state it once");
  if (std::abs(factor - extension) > 1e-6 * extension)
    return Unsupported(fields.where(), absl::StrCat("factor ", factor, " of longrope"),
                       absl::StrCat("the factor by which the positions were extended (", extension, ") is supported"));
  rope.original_max_position = stated;
  return absl::OkStatus();
}

absl::Status ReadScaling(JsonFields& fields, int64_t original, const Family& family, RopeConfig& rope, ModelConfig& config) {
  rope.low_freq_factor = fields.DoubleOr("low_freq_factor", 1.0, 1e-6, kMaxFactor);
  rope.high_freq_factor = fields.DoubleOr("high_freq_factor", 4.0, 1e-6, kMaxFactor);
  rope.beta_fast = fields.DoubleOr("beta_fast", 32.0, 1e-6, kMaxFactor);
  rope.beta_slow = fields.DoubleOr("beta_slow", 1.0, 1e-6, kMaxFactor);
  rope.truncate = fields.BoolOr("truncate", true);
  const int64_t stated = fields.IntOr("original_max_position_embeddings", original, 1, kMaxPositions);
  // As in transformers: dynamic scaling begins at max_position_embeddings, whatever else is stated.
  rope.original_max_position = rope.type == RopeType::kDynamic ? config.max_positions : stated;
  if (rope.type == RopeType::kYarn) {
    ReadYarn(fields, config.max_positions, rope);
  } else {
    rope.factor = fields.Double("factor", 1e-6, kMaxFactor);
  }
  LIME_RETURN_IF_ERROR(fields.status());
  if (rope.type == RopeType::kLlama3 && rope.high_freq_factor <= rope.low_freq_factor)
    return Invalid(fields.where(), ": high_freq_factor must be above low_freq_factor");
  if (rope.type == RopeType::kYarn && rope.theta <= 1)
    return Invalid(fields.where(), ": the scaling yarn divides by the logarithm of rope_theta, so rope_theta must be above 1");
  if (family.sliding_theta == 0) config.max_positions = ReachedPositions(rope, config.max_positions);
  return absl::OkStatus();
}

}  // namespace

// A list with 1 for each layer that rotates, or else a number: each so many-th layer does not.
absl::Status ReadSkippedRotations(const json& root, std::string_view name, ModelConfig& config) {
  constexpr int64_t kDefaultInterval = 4;
  JsonFields fields(root, std::string(name));
  const int64_t interval = fields.IntOr("no_rope_layer_interval", kDefaultInterval, 1, INT32_MAX);
  const std::vector<int64_t> rotates =
      fields.Has("no_rope_layers") ? fields.Ints("no_rope_layers", 0, 1, kMaxListed) : std::vector<int64_t>();
  LIME_RETURN_IF_ERROR(fields.status());
  if (fields.Has("no_rope_layers") && rotates.size() < config.layers.size()) {
    return Invalid(Text(name), ": field \"no_rope_layers\" has ", rotates.size(), " entries for ", config.layers.size(), " layers");
  }
  for (size_t layer = 0; layer < config.layers.size(); ++layer) {
    const bool skips = rotates.empty() ? (static_cast<int64_t>(layer) + 1) % interval == 0 : rotates[layer] == 0;
    if (skips) config.layers[layer].rope = -1;
  }
  return absl::OkStatus();
}

namespace {

// The rotation of `layers`.
absl::StatusOr<RopeConfig> ReadRope(const json& root, const LayerTypes& layers, std::string_view name, const Family& family,
                                    int64_t head_dim, ModelConfig& config) {
  RopeConfig rope;
  JsonFields top(root, std::string(name));
  rope.theta = RotateApart(layers, family) ? top.DoubleOr("rope_local_base_freq", family.sliding_theta, kLowestTheta, kHighestTheta)
                                           : top.DoubleOr("rope_theta", family.defaults.rope_theta, kLowestTheta, kHighestTheta);
  const int64_t original = top.IntOr("original_max_position_embeddings", config.max_positions, 1, kMaxPositions);
  rope.original_max_position = config.max_positions;
  LIME_RETURN_IF_ERROR(top.status());
  LIME_ASSIGN_OR_RETURN(const double share, RotatedShare(top, family.defaults.partial_rotation, family, name));
  const char* key = "rope_scaling";
  LIME_ASSIGN_OR_RETURN(const json object, FindRope(root, layers, family, rope.theta, name, key));
  if (family.needs_rope_parameters && object.empty()) return Invalid(Text(name), ": field \"rope_parameters\" is missing");
  const std::string where = absl::StrCat(Text(name), ": ", key);
  JsonFields fields(object, where);
  LIME_ASSIGN_OR_RETURN(const std::string type, StatedType(object, where));
  if (type.empty()) LIME_RETURN_IF_ERROR(RefuseUntyped(fields, where));
  LIME_ASSIGN_OR_RETURN(rope.type, ParseRopeType(type.empty() ? "default" : type, name, family));
  LIME_ASSIGN_OR_RETURN(const double stated_share, RotatedShare(fields, share, family, where));
  LIME_ASSIGN_OR_RETURN(rope.dims, RotatedDimensions(stated_share, head_dim, name));
  if (family.rotated_dims != nullptr) LIME_RETURN_IF_ERROR(ReadRotatedDimensions(top, family.rotated_dims, head_dim, rope.dims));
  LIME_RETURN_IF_ERROR(RefuseOtherScalings(object, family, rope.type, where));
  rope.theta = fields.DoubleOr("rope_theta", rope.theta, kLowestTheta, kHighestTheta);
  LIME_RETURN_IF_ERROR(fields.status());
  if (rope.type == RopeType::kProportional) {
    if (head_dim % 2 != 0) return Invalid(Text(name), ": a head of ", head_dim, " dimensions is odd; rotary embedding needs pairs");
    rope.turning = std::exchange(rope.dims, head_dim);
    rope.factor = fields.DoubleOr("factor", 1.0, 1e-6, kMaxFactor);
    return fields.status().ok() ? absl::StatusOr<RopeConfig>(rope) : fields.status();
  }
  if (rope.type == RopeType::kLongRope) {
    LIME_RETURN_IF_ERROR(ReadLongRope(top, fields, config, rope));
    return rope;
  }
  if (rope.type != RopeType::kDefault) LIME_RETURN_IF_ERROR(ReadScaling(fields, original, family, rope, config));
  if (family.scales_queries) LIME_RETURN_IF_ERROR(ReadQueryBeta(fields, rope));
  return rope;
}

// Where types of layers rotate differently, rope_parameters are by type.
absl::Status RefuseFlat(const json& root, std::string_view name) {
  const auto found = root.find("rope_parameters");
  if (found == root.end() || !found->is_object() || found->empty() || found->begin()->is_object()) return absl::OkStatus();
  return Unsupported(name, "rope_parameters for all layers alike", "one set for each layer type is supported");
}

}  // namespace

absl::Status ReadRopes(const json& root, const LayerTypes& layers, std::string_view name, const Family& family, HeadDims heads,
                       ModelConfig& config) {
  if (family.sliding_theta == 0) {
    LIME_ASSIGN_OR_RETURN(const RopeConfig rope, ReadRope(root, layers, name, family, heads.full, config));
    config.ropes = {rope};
    return absl::OkStatus();
  }
  LIME_RETURN_IF_ERROR(RefuseFlat(root, name));
  for (const LayerType type : {LayerType::kFull, LayerType::kSliding}) {
    if (!layers.Have(type)) continue;
    const LayerTypes of_type{.of_layer = {type}, .window = layers.window};
    const int64_t head_dim = type == LayerType::kFull ? heads.full : heads.sliding;
    LIME_ASSIGN_OR_RETURN(const RopeConfig rope, ReadRope(root, of_type, name, family, head_dim, config));
    config.ropes.push_back(rope);
  }
  return absl::OkStatus();
}

int32_t RopeOf(LayerType type, const LayerTypes& layers, const Family& family) {
  return family.sliding_theta > 0 && type == LayerType::kSliding && layers.Have(LayerType::kFull) ? 1 : 0;
}

}  // namespace lime::config
