// The best plan by looking at every one of them: for tests of the searches on tiny instances.
#pragma once

#include "planner/evaluation/assignment.h"
#include "planner/plan/instance/instance.h"

namespace lime {

struct OracleBest {
  bool feasible = false;
  double ms_per_step = 0;
  StagePlan plan;
};

// Written without the searches: all devices for all blocks (where the granularity lets stages
// begin), then all sets of streamed blocks and both ways of the embedding.
// A plan is passed over only where its token, computed and handed on without ever waiting, is
// already too slow.
OracleBest LookAtEveryPlan(const Instance& instance, Granularity granularity);

}  // namespace lime
