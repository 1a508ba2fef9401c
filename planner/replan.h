// Decides whether to replace the plan in use after the network or the devices have changed.
#pragma once

#include <string>

#include "planner/base/status.h"
#include "planner/plan/instance/instance.h"
#include "planner/plan/instance/stage_plan.h"
#include "planner/search/plan_search.h"

namespace lime {

struct ReplanProblem {
  Instance instance;  // the current state
  StagePlan current;
  double remaining_steps = 0;
  double move_mb_per_ms = 0;  // 0: blocks and their KV cannot move
};

struct Replan {
  bool feasible = false;  // the plan fits
  // The saving over the remaining steps exceeds the time to move, or the current plan no longer
  // fits.
  bool changed = false;
  StagePlan plan;  // the current plan unless `changed`
  // Time to move weights and KV to other devices. A change of residency in place costs nothing.
  double switch_ms = 0;
  double ms_per_step = 0;
  std::string reason;  // why no plan fits
};

// REQUIRES: problem.instance.Validate().ok(), problem.current.Validate(problem.instance).ok()
Replan PlanAgain(const ReplanProblem& problem, SearchOptions options);

}  // namespace lime
