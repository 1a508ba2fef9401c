// The weights of --model as they are here: by their digest plans and devices are compared with
// them.
#pragma once

#include <string>

#include "nlohmann/json.hpp"
#include "planner/base/status.h"
#include "planner/plan/model_spec.h"
#include "planner/plan/plan.h"
#include "planner/plan/weights_digest.h"

namespace lime::cli {

struct ModelWeights {
  std::string folder;  // --model
  ModelSpec spec;
  WeightsDigest digest;  // of all blocks
};

// Reads some 16 KiB at four places of every tensor.
absl::StatusOr<ModelWeights> LookAtWeights(const std::string& model);

// What a plan's file says of the weights that it was made for: its field "weights_xxh3". Plans that
// were made without weights (`lime plan --model-spec`) lack it and belong to every model of their
// shape.
void SayWhatItBelongsTo(const ModelWeights& weights, nlohmann::ordered_json& plan);

// Reads the plan in the file `path`. WrongCall where it was made for another model.
absl::StatusOr<Plan> ReadPlanOf(const ModelWeights& weights, const std::string& path);

}  // namespace lime::cli
