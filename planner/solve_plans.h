// The two kinds of problem that are searches: `optimize` and `replan`.
#pragma once

#include "nlohmann/json.hpp"
#include "planner/base/status.h"
#include "planner/solve.h"

namespace lime {

absl::StatusOr<nlohmann::ordered_json> SolveOptimize(const nlohmann::json& problem, const SolveOptions& options);
absl::StatusOr<nlohmann::ordered_json> SolveReplan(const nlohmann::json& problem, const SolveOptions& options);

}  // namespace lime
