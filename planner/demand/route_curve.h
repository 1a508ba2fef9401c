// What recorded routes say to the planner: the expected share of hits for each number of places, and
// the policy that makes it.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "planner/base/status.h"
#include "planner/demand/route_log.h"
#include "planner/demand/unit_policy.h"

namespace lime {

// Of the choices of one row, over all layers; every layer has as many places. Entry i is for i + 1
// places. Empty: no routes are known.
struct RouteCurve {
  std::vector<double> hits;          // with the best policy; does not decrease
  std::vector<UnitPolicy> policies;  // the first of kUnitPolicies among equals

  friend bool operator==(const RouteCurve&, const RouteCurve&) = default;
};

// The newest choices of a log that a curve is made from. Replays of them with each policy, and with
// up to kCurvePoints numbers of places, bound its time.
inline constexpr int64_t kCurveChoices = 1 << 19;

// Replays the log with each policy. Visits of several rows, such as those of a prompt, change what is
// in memory, and do not count. `name` names the log in errors. InvalidArgument if it has no visit of
// one row.
absl::StatusOr<RouteCurve> CurveOfRoutes(const RouteLog& log, std::string_view name, int64_t most_choices = kCurveChoices);

}  // namespace lime
