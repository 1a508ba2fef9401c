// Reads the longer parts of a config.json (model_config.cc reads the rest).
#pragma once

#include <string_view>

#include "nlohmann/json.hpp"
#include "planner/base/status.h"
#include "planner/plan/model/model_config.h"

namespace lime::config {

inline constexpr int64_t kMaxPositions = int64_t{1} << 24;
inline constexpr char kFullAttention[] = "full_attention", kSlidingAttention[] = "sliding_attention";  // transformers' names

// Unimplemented: "NAME: WHAT is not supported; SUPPORTED".
absl::Status Unsupported(std::string_view name, std::string_view what, std::string_view supported);

// The kinds of attention that the layers have.
struct LayerTypes {
  bool full = false;
  bool sliding = false;
  int64_t window = 0;  // sliding layers: a token attends to itself and window - 1 before it
};

// Reads them as the family's class in transformers does: from layer_types, or else from
// use_sliding_window, sliding_window and max_window_layers. REQUIRES: family and num_layers are set
absl::StatusOr<LayerTypes> ReadLayerTypes(const nlohmann::json& root, std::string_view name, const ModelConfig& config);

// Sets config.rope from rope_theta, rope_scaling and rope_parameters. Raises max_positions to the
// range of the scaling. REQUIRES: max_positions is set
absl::Status ReadRope(const nlohmann::json& root, const LayerTypes& layers, std::string_view name, ModelConfig& config);

// Sets config.sliding_window; 0 if no position is that far away. Unimplemented if only some layers
// have a window. REQUIRES: ReadRope
absl::Status SetWindow(const LayerTypes& layers, std::string_view name, ModelConfig& config);

// Unimplemented, with the field's name, if `root` asks for a computation that no family here has.
// REQUIRES: the rest of `config` is set
absl::Status RefuseOtherComputations(const nlohmann::json& root, std::string_view name, const ModelConfig& config);

}  // namespace lime::config
