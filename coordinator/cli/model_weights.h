// The weights of --model on this machine. Their digest is compared with plans and devices.
#pragma once

#include <string>

#include "nlohmann/json.hpp"
#include "planner/base/status.h"
#include "planner/plan/model/model_spec.h"
#include "planner/plan/model/weights_digest.h"
#include "planner/plan/plan.h"

namespace lime::cli {

struct ModelWeights {
  std::string folder;  // --model
  ModelSpec spec;
  WeightsDigest digest;  // of all blocks
};

// Reads about 16 KiB at four places of every tensor.
absl::StatusOr<ModelWeights> LookAtWeights(const std::string& model);

// Writes the digest of the weights into a plan's file: its field "weights_xxh3". Plans made without
// weights (`lime plan --model-spec`) lack it and fit every model of their shape.
void SayWhatItBelongsTo(const ModelWeights& weights, nlohmann::ordered_json& plan);

// Reads the plan in the file `path`. WrongCall if it was made for another model.
absl::StatusOr<Plan> ReadPlanOf(const ModelWeights& weights, const std::string& path);

}  // namespace lime::cli
