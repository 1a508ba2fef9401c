// The flags of sparse MLPs for the plan of a cluster, and what sessions say of predictors.
#pragma once

#include <string>

#include "coordinator/cli/command.h"
#include "coordinator/planning/sparse_inputs.h"
#include "daemon/weights/predictor_store.h"
#include "nlohmann/json_fwd.hpp"
#include "planner/base/status.h"

namespace lime::cli {

// What --sparsity and the flags beside it ask for, and what the folder of the model has for that; nothing
// if nothing may be sparse. `model`: empty if only a config.json is known. Wrong flags, and
// with --sparsity exact or predicted what ReadSparseModel refuses, are wrong calls.
absl::StatusOr<SparseInputs> ReadSparseInputs(const ModelFlags& flags, const std::string& model);

// Says that results change, and by how much perplexity did when the predictor was trained.
std::string PredictorText(const PredictorStore& predictor);
nlohmann::json PredictorJson(const PredictorStore& predictor);

}  // namespace lime::cli
