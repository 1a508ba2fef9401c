// Runs a plan in simulated time while its residency changes.
#pragma once

#include <utility>
#include <vector>

#include "planner/sim/simulator.h"

namespace lime {

// At `at_ms` the residency becomes the residency of `after`. Each plan differs from the plan before
// only in residency.
struct PlanAt {
  double at_ms = 0;
  Plan after;
};

inline absl::StatusOr<SimulationResult> SimulateChanges(const Plan& plan, const std::vector<PlanAt>& changes,
                                                        const SimulateOptions& options = {}) {
  const StepShape shape = DecodeShape(plan);
  SimulatedSteps script = {.kind = StepShape::Kind::kDecode, .steps = std::vector<int32_t>(std::max(options.steps, 1), 0)};
  LIME_ASSIGN_OR_RETURN(script.programs.emplace_back(), Compile(plan, shape));
  const Plan* before = &plan;
  for (const PlanAt& change : changes) {
    SimulatedChange& added = script.changes.emplace_back(SimulatedChange{.at_ms = change.at_ms});
    LIME_ASSIGN_OR_RETURN(added.entering.emplace_back(), CompileChange(*before, change.after, shape));
    LIME_ASSIGN_OR_RETURN(added.settled.emplace_back(), Compile(change.after, shape));
    added.after = change.after;
    before = &change.after;
  }
  return Simulate(plan, script, options);
}

}  // namespace lime
