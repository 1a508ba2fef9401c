// Whether to leave the plan in force for a better one when the network or the devices have changed.
#pragma once

#include <string>

#include "planner/base/status.h"
#include "planner/plan/instance.h"
#include "planner/plan/stage_plan.h"
#include "planner/plan_search.h"

namespace lime {

struct ReplanProblem {
  Instance instance;  // as things are now
  StagePlan current;
  double remaining_steps = 0;
  double move_mb_per_ms = 0;  // 0: blocks and their KV cannot move
};

struct Replan {
  bool feasible = false;  // the plan fits
  bool changed = false;   // the saving over the remaining steps exceeds the time to move, or the current plan no longer fits
  StagePlan plan;         // to be in force: the current one unless `changed`
  double switch_ms =
      0;  // to move the blocks of another device, weights and KV. What becomes resident or streams where it is costs nothing.
  double ms_per_step = 0;
  std::string reason;  // why nothing fits
};

// REQUIRES: problem.instance.Validate().ok(), problem.current.Validate(problem.instance).ok()
Replan PlanAgain(const ReplanProblem& problem, SearchOptions options);

}  // namespace lime
