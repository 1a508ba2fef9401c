// Planner problems as JSON: what `lime solve` answers. One object with a `kind` in, one object out.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "planner/base/status.h"

namespace lime {

inline constexpr size_t kMaxProblemBytes = size_t{16} << 20;

// The answer as one line of JSON. That nothing feasible exists is an answer (`feasible` false and a `reason`).
// InvalidArgument: the problem is malformed, in one sentence naming the field. Unimplemented: the kind is not built yet.
absl::StatusOr<std::string> Solve(std::string_view problem);

}  // namespace lime
