#include "absl/strings/str_cat.h"
#include "planner/base/json_fields.h"
#include "planner/base/strings.h"
#include "planner/plan/model/config_parts.h"

namespace lime::config {
namespace {

using nlohmann::json;

constexpr std::string_view kSupported = "MLX affine groups of 3, 4, 6 or 8 bits are supported";

absl::StatusOr<Quantization> ReadPacking(const json& object, const std::string& where, std::string_view name) {
  JsonFields fields(object, where);
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
  return packing;
}

}  // namespace

absl::Status ReadQuantization(const json& root, std::string_view name, ModelConfig& config) {
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
  const std::string where = absl::StrCat(Text(name), ": quantization");
  LIME_ASSIGN_OR_RETURN(config.quantization, ReadPacking(object, where, name));
  for (const auto& [path, value] : object.items()) {
    if (value == false) config.quantization_of[path] = std::nullopt;
    if (!value.is_object()) continue;
    LIME_ASSIGN_OR_RETURN(config.quantization_of[path], ReadPacking(value, absl::StrCat(where, ": ", path.substr(0, 80)), name));
  }
  return absl::OkStatus();
}

}  // namespace lime::config
