// Finds the best plan by looking at all plans, for tests of the searches on tiny instances.
#pragma once

#include "planner/evaluation/assignment.h"
#include "planner/plan/instance/instance.h"

namespace lime {

struct OracleBest {
  bool feasible = false;
  double ms_per_step = 0;
  StagePlan plan;
};

// Uses no code of the searches. Tries all devices for all blocks (a stage begins only where the
// granularity allows it), then all sets of streamed blocks and both ways of the embedding.
// Skips a plan only if its token would be too slow even without any wait.
OracleBest LookAtEveryPlan(const Instance& instance, Granularity granularity);

}  // namespace lime
