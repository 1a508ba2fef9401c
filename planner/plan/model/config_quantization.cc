#include "absl/strings/str_cat.h"
#include "planner/base/json_fields.h"
#include "planner/base/strings.h"
#include "planner/plan/model/config_parts.h"

namespace lime::config {
namespace {

using nlohmann::json;

constexpr std::string_view kSupported =
    "MLX affine groups of 3, 4, 6 or 8 bits, mxfp4, and FP8 weights (\"fp8\", or \"compressed-tensors\" of float 8 bits) are supported";
constexpr size_t kMaxModules = 65536;

// ---- MLX: "quantization"

absl::StatusOr<Quantization> ReadPacking(const json& object, const std::string& where) {
  JsonFields fields(object, where);
  const std::string mode = fields.StringOr("mode", "affine");
  Quantization packing;
  packing.bits = static_cast<int>(fields.Int("bits", 1, 64));
  packing.group_size = static_cast<int>(fields.Int("group_size", 1, 65536));
  LIME_RETURN_IF_ERROR(fields.status());
  if (mode == "mxfp4" && packing.bits == 4 && packing.group_size == 32) return kMxfp4;
  if (mode != "affine") {
    return Unsupported(
        where, absl::StrCat("quantisation mode \"", mode.substr(0, 80), "\" to ", packing.bits, " bits in groups of ", packing.group_size),
        "MLX affine groups, and mxfp4 of 4 bits in groups of 32, are supported");
  }
  const bool known_bits = packing.bits == 3 || packing.bits == 4 || packing.bits == 6 || packing.bits == 8;
  if (!known_bits) return Unsupported(where, absl::StrCat("quantisation to ", packing.bits, " bits"), kSupported);
  const bool known_group = packing.group_size == 32 || packing.group_size == 64 || packing.group_size == 128;
  if (!known_group)
    return Unsupported(where, absl::StrCat("a quantisation group of ", packing.group_size), "groups of 32, 64 and 128 are supported");
  return packing;
}

absl::Status ReadMlx(const json& object, std::string_view name, ModelConfig& config) {
  if (!object.is_object()) return Invalid(Text(name), ": field \"quantization\" is not an object");
  const std::string where = absl::StrCat(Text(name), ": quantization");
  LIME_ASSIGN_OR_RETURN(config.quantization, ReadPacking(object, where));
  for (const auto& [path, value] : object.items()) {
    if (value == false) config.quantization_of[path] = std::nullopt;
    if (!value.is_object()) continue;
    const std::string of_module = absl::StrCat(where, ": ", Text(path.substr(0, 80)));
    LIME_ASSIGN_OR_RETURN(config.quantization_of[path], ReadPacking(value, of_module));
  }
  return absl::OkStatus();
}

// ---- Others: "quantization_config"

absl::Status OtherMethod(std::string_view name, std::string_view method, std::string_view what) {
  return Unsupported(name, absl::StrCat("quantisation method \"", Text(method), "\"", Text(what)), kSupported);
}

// Paths of modules that stay dense. Patterns are left out: the tensors of a checkpoint show it, too.
absl::Status ReadDenseModules(JsonFields& fields, const char* key, ModelConfig& config) {
  if (!fields.Has(key)) return absl::OkStatus();
  for (const json& module : fields.Array(key, kMaxModules)) {
    if (module.is_string()) config.quantization_of[module.get<std::string>()] = std::nullopt;
  }
  return fields.status();
}

// A block of weights that share a scale, as [rows, columns].
absl::Status CheckBlock(JsonFields& fields, const char* key, std::string_view name, std::string_view method, ScaleShape& scales) {
  if (!fields.Has(key)) return absl::OkStatus();
  const std::vector<int64_t> block = fields.Ints(key, 1, int64_t{1} << 20, 8);
  LIME_RETURN_IF_ERROR(fields.status());
  scales = ScaleShape::kBlocks;
  if (block == std::vector<int64_t>{kFp8Block, kFp8Block}) return absl::OkStatus();
  return OtherMethod(name, method, absl::StrCat(" with another ", key, " than [128, 128]"));
}

// transformers and vLLM: FP8 of DeepSeek, Qwen and MiniMax. Activations are never quantised here, so
// activation_scheme only says whether their scales are in the checkpoint, as kv_cache_scheme does of
// those of KV. MiniMax writes torch's name of the format.
absl::Status ReadFp8(const json& object, const std::string& where, std::string_view name, ModelConfig& config) {
  JsonFields fields(object, where);
  const std::string format = fields.StringOr("fmt", "e4m3");
  config.has_input_scales = fields.StringOr("activation_scheme", "dynamic") == "static";
  config.has_kv_scales = fields.Has("kv_cache_scheme");
  LIME_RETURN_IF_ERROR(fields.status());
  if (format != "e4m3" && format != "float8_e4m3fn")
    return OtherMethod(name, "fp8", absl::StrCat(" of format \"", format.substr(0, 80), "\""));
  config.quantization = kFp8;
  config.quantization->scales = ScaleShape::kMatrix;
  LIME_RETURN_IF_ERROR(CheckBlock(fields, "weight_block_size", name, "fp8", config.quantization->scales));
  LIME_RETURN_IF_ERROR(ReadDenseModules(fields, "modules_to_not_convert", config));
  return ReadDenseModules(fields, "ignored_layers", config);
}

// The weights of one group of compressed-tensors: symmetric float of 8 bits.
absl::Status ReadGroup(const json& group, const std::string& where, std::string_view name, ScaleShape& scales) {
  JsonFields fields(group, where);
  const json& weights = fields.Object("weights");
  LIME_RETURN_IF_ERROR(fields.status());
  JsonFields of_weights(weights, absl::StrCat(where, ": weights"));
  const int64_t bits = of_weights.Int("num_bits", 1, 64);
  const std::string type = of_weights.StringOr("type", "int"), strategy = of_weights.StringOr("strategy", "tensor");
  const bool symmetric = of_weights.BoolOr("symmetric", true);
  LIME_RETURN_IF_ERROR(of_weights.status());
  constexpr std::string_view kMethod = "compressed-tensors";
  if (type != "float" || bits != 8 || !symmetric)
    return OtherMethod(name, kMethod, absl::StrCat(" with weights of type \"", type.substr(0, 80), "\" and ", bits, " bits"));
  if (strategy == "tensor") {
    scales = ScaleShape::kMatrix;
  } else if (strategy == "channel") {
    scales = ScaleShape::kRows;
  } else if (strategy == "block" && of_weights.Has("block_structure")) {
    return CheckBlock(of_weights, "block_structure", name, kMethod, scales);
  } else {
    return OtherMethod(name, kMethod, absl::StrCat(" with the strategy \"", strategy.substr(0, 80), "\""));
  }
  return absl::OkStatus();
}

// Whether the inputs of a group have scales in the checkpoint. Dynamic ones are computed from the
// inputs.
bool HasInputScales(const json& group) {
  const auto inputs = group.find("input_activations");
  return inputs != group.end() && inputs->is_object() && inputs->value("dynamic", json(false)) == false;
}

absl::Status ReadCompressedTensors(const json& object, const std::string& where, std::string_view name, ModelConfig& config) {
  JsonFields fields(object, where);
  const json& groups = fields.Has("config_groups") ? fields.Object("config_groups") : json::object();
  LIME_RETURN_IF_ERROR(fields.status());
  if (groups.empty()) return OtherMethod(name, "compressed-tensors", " without config_groups");
  const auto sparsity = object.find("sparsity_config");
  const bool is_sparse =
      sparsity != object.end() && sparsity->is_object() && !sparsity->empty() && sparsity->value("format", json()) != "dense";
  if (is_sparse) return OtherMethod(name, "compressed-tensors", " with sparse weights");
  config.quantization = kFp8;
  for (const auto& [key, group] : groups.items()) {
    if (!group.is_object()) return Invalid(where, ": config_groups: field \"", Text(key.substr(0, 80)), "\" is not an object");
    LIME_RETURN_IF_ERROR(ReadGroup(group, absl::StrCat(where, ": ", key.substr(0, 80)), name, config.quantization->scales));
    config.has_input_scales |= HasInputScales(group);
  }
  config.has_kv_scales = fields.Has("kv_cache_scheme");
  return ReadDenseModules(fields, "ignore", config);
}

}  // namespace

absl::Status ReadQuantization(const json& root, std::string_view name, ModelConfig& config) {
  JsonFields top(root, std::string(name));
  std::string method = "unnamed";
  const json* other = top.Has("quantization_config") ? &root.at("quantization_config") : nullptr;
  if (other != nullptr && other->is_object() && other->contains("quant_method") && other->at("quant_method").is_string())
    method = other->at("quant_method").get<std::string>().substr(0, 80);
  const bool has_mlx = top.Has("quantization");
  const bool of_mlx = has_mlx && (method == "unnamed" || method == "mlx" || method == "affine" || method == "mxfp4");
  if (other == nullptr || of_mlx) return has_mlx ? ReadMlx(root.at("quantization"), name, config) : absl::OkStatus();
  const std::string where = absl::StrCat(Text(name), ": quantization_config");
  config.quantization_method = method;
  if (method == "fp8") return ReadFp8(*other, where, name, config);
  if (method == "compressed-tensors") return ReadCompressedTensors(*other, where, name, config);
  if (method != "mxfp4") return OtherMethod(name, method, "");
  config.quantization = kMxfp4;
  return absl::OkStatus();
}

}  // namespace lime::config
