// Plans as JSON: what `lime plan --json` prints, the coordinator sends and `lime simulate` reads.
#pragma once

#include <string>
#include <string_view>

#include "nlohmann/json.hpp"
#include "planner/base/status.h"
#include "planner/plan/plan.h"

namespace lime {

// Reads and validates a plan. The input is untrusted: sizes, counts, numbers and strings are
// bounded, and the error names the first wrong field after `where`. Ignores unknown fields, and
// fields that are only for people (names of blocks).
absl::StatusOr<Plan> ParsePlan(std::string_view text, std::string_view where);
absl::StatusOr<Plan> PlanFromJson(const nlohmann::json& object, std::string_view where);

// Writes a plan. Reading it back gives the same plan, bit for bit.
nlohmann::ordered_json ToJson(const Plan& plan);
std::string ToJsonText(const Plan& plan);

}  // namespace lime
