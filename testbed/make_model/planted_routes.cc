#include "testbed/make_model/planted_routes.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "planner/base/strings.h"

namespace lime {

PlantedRows PlantedEmbedding() {
  return {.shared = static_cast<float>(kPlantedScale * std::sqrt(kPlantedShared)),
          .own = static_cast<float>(kPlantedScale * std::sqrt(1 - kPlantedShared))};
}

PlantedRows PlantedHead(int64_t hidden_size) {
  const double pull = std::log(kPlantedStay * (kPlantedTopics - 1) / (1 - kPlantedStay));
  return {.shared = static_cast<float>(pull / (static_cast<double>(hidden_size) * std::sqrt(kPlantedShared)))};
}

absl::Status CheckPlantedRoutes(const ModelConfig& config) {
  if (!config.experts) {
    return absl::InvalidArgumentError(
        absl::StrCat("planted routes need a family with experts, such as qwen3_moe; ", Text(config.model_type), " has none"));
  }
  if (config.tie_embeddings)
    return absl::InvalidArgumentError("planted routes need a head of its own; this model uses its embedding as head");
  if (config.quantization && config.quantization_method.empty())
    return absl::InvalidArgumentError("planted routes are not supported with packed embeddings; leave out --bits");
  return absl::OkStatus();
}

}  // namespace lime
