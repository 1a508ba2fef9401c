// Reads the longer parts of a config.json (model_config.cc reads the rest).
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "nlohmann/json.hpp"
#include "planner/base/status.h"
#include "planner/plan/model/family.h"
#include "planner/plan/model/model_config.h"

namespace lime::config {

inline constexpr int64_t kMaxPositions = int64_t{1} << 24;
inline constexpr int64_t kMaxWidth = int64_t{1} << 20;
inline constexpr int64_t kMaxHeadDim = 1024;
inline constexpr double kMaxFactor = 1e6;
// Fields that state the number of experts, by other families' names.
inline constexpr const char* kExpertCounts[] = {"num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts"};

// Unimplemented: "NAME: WHAT is not supported; SUPPORTED".
absl::Status Unsupported(std::string_view name, std::string_view what, std::string_view supported);

// The configuration of the language model. Files of models that also read images have it in the
// field "text_config", and a few of its fields outside, which are added. `name` becomes the place
// of the fields, for errors.
absl::StatusOr<nlohmann::json> TextConfig(nlohmann::json root, std::string& name);

// A family, and the name of the class as config.json means it.
struct Architecture {
  const Family* family = nullptr;
  std::string_view name;
};

// The activation of the MLP that transformers calls so; nullopt: it is not supported.
std::optional<Activation> ActivationNamed(std::string_view spelled);

// Reads "model_type" and "architectures" of TextConfig.
absl::StatusOr<Architecture> FindArchitecture(const nlohmann::json& text, std::string_view name);

// The attention of a layer, by transformers' names.
enum class LayerType : uint8_t { kFull, kSliding, kLinear };
std::string_view NameOf(LayerType type);

struct LayerTypes {
  std::vector<LayerType> of_layer;
  int64_t window = 0;  // sliding layers: a token attends to itself and window - 1 before it

  bool Have(LayerType type) const;
};

// Reads them as the family's class in transformers does: from layer_types, or else by the family's
// pattern.
absl::StatusOr<LayerTypes> ReadLayerTypes(const nlohmann::json& root, std::string_view name, const Family& family, int64_t num_layers);

// Dimensions of a head that may rotate, by the type of its layer.
struct HeadDims {
  int64_t full = 0;
  int64_t sliding = 0;
};

// Sets config.ropes: the rotation of all layers that rotate, from rope_theta, rope_scaling and
// rope_parameters. Where the types of layers rotate differently (Family::sliding_theta), first that
// of full layers. Raises config.max_positions to the range of the scaling. REQUIRES: max_positions
// is set
absl::Status ReadRopes(const nlohmann::json& root, const LayerTypes& layers, std::string_view name, const Family& family, HeadDims heads,
                       ModelConfig& config);
// Index into config.ropes of the layers of this type.
int32_t RopeOf(LayerType type, const LayerTypes& layers, const Family& family);

// Sets the layers' rope to -1 where the model skips it (SmolLM3).
absl::Status ReadSkippedRotations(const nlohmann::json& root, std::string_view name, ModelConfig& config);

// Sets in `full` what the layers of Gemma 4 that attend to all positions have instead of the heads in
// it. Full layers may state them one by one.
absl::Status ReadGlobalHeads(const nlohmann::json& root, std::string_view name, const LayerTypes& types, const ModelConfig& config,
                             LayerConfig& full);

// Gemma 4 E2B and E4B: the embedding of every layer, and the last layers, which take keys and values of
// earlier ones. REQUIRES: config.layers is set, of `types`
absl::Status ReadLayerInputs(const nlohmann::json& root, std::string_view name, ModelConfig& config);
absl::Status ReadSharedKv(const nlohmann::json& root, std::string_view name, const LayerTypes& types, ModelConfig& config);

// Sets the window of the sliding layers; 0 if no position is that far away. REQUIRES: ReadRopes
void SetWindows(const LayerTypes& layers, ModelConfig& config);

// Sets config.experts, the layers that have them, and intermediate_size of the others. REQUIRES: the
// family has experts; config.layers is set
absl::Status ReadExperts(const nlohmann::json& root, std::string_view name, const Family& family, ModelConfig& config);

// Unimplemented, with the field's name, if `root` asks for a computation that the family does not
// have. REQUIRES: the rest of `config` is set
absl::Status RefuseOtherComputations(const nlohmann::json& root, std::string_view name, const Family& family, const ModelConfig& config);

// MLX writes {"group_size", "bits"} as "quantization". Other methods use "quantization_config".
absl::Status ReadQuantization(const nlohmann::json& root, std::string_view name, ModelConfig& config);

}  // namespace lime::config
