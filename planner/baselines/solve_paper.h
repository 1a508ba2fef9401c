// The paper's formulas for `lime solve`: kinds eq1, slots, online and kvtransfer.
#pragma once

#include <optional>
#include <string_view>

#include "nlohmann/json.hpp"
#include "planner/base/status.h"

namespace lime {

// Nothing for another kind. InvalidArgument for a malformed problem, in one sentence with the
// field.
std::optional<absl::StatusOr<nlohmann::ordered_json>> SolvePaper(std::string_view kind, const nlohmann::json& problem);

}  // namespace lime
