// Solves planner problems for `lime solve`: one JSON object with a `kind` in, one JSON object out.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>

#include "planner/base/status.h"

namespace lime {

inline constexpr size_t kMaxProblemBytes = size_t{16} << 20;

struct SolveOptions {
  std::function<double()> now_ms;  // a running clock; empty: `time_limit_ms` sets only the work
  double max_work = 1e18;          // per search, in units of SearchBudget
};

// The answer as one line of JSON. No feasible plan is also an answer (`feasible` false and a
// `reason`). InvalidArgument for a malformed problem, in one sentence with the field.
absl::StatusOr<std::string> Solve(std::string_view problem, const SolveOptions& options = {});

}  // namespace lime
