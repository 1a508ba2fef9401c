// Planner problems as JSON: what `lime solve` answers. One object with a `kind` in, one object out.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>

#include "planner/base/status.h"

namespace lime {

inline constexpr size_t kMaxProblemBytes = size_t{16} << 20;

struct SolveOptions {
  std::function<double()> now_ms;  // milliseconds that go on; empty: `time_limit_ms` sets the amount of work alone
  double max_work = 1e18;          // of a search, in units of SearchBudget
};

// The answer as one line of JSON. That nothing feasible exists is an answer (`feasible` false and a `reason`).
// InvalidArgument: the problem is malformed, in one sentence naming the field.
absl::StatusOr<std::string> Solve(std::string_view problem, const SolveOptions& options = {});

}  // namespace lime
