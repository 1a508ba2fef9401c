// Recorded routes as inputs of a plan (`lime trace --routes`, planner/demand/route_log.h).
#pragma once

#include <string>

#include "planner/base/status.h"
#include "planner/demand/route_curve.h"
#include "planner/demand/route_log.h"
#include "planner/plan/model/model_spec.h"
#include "planner/problem/plan_problem.h"

namespace lime {

// The key of the model as printable ASCII without spaces, in logs of routes and in calibrations.
std::string RouteKey(const ModelSpec& spec);

// What all routes of a model have in common, with its key. InvalidArgument if it has no experts;
// `model` names it in the error.
absl::StatusOr<RouteShape> RouteShapeOf(const ModelSpec& spec, const std::string& model);

// Reads the log that the user names, and replays it. A wrong call if it is not a log, or if it is of
// another model than `spec`, which `model` names. Takes a second for a long log.
absl::StatusOr<RouteCurve> ReadRoutes(const std::string& path, const ModelSpec& spec, const std::string& model);

// Plans with these routes instead of generic ones.
void UseRoutes(const RouteCurve& routes, PlanRequest& request);

}  // namespace lime
