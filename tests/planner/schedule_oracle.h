// An independent evaluation of plans for tests: a discrete-event simulation with a queue of events,
// disks that read, pools that hold bytes and links that carry messages, written from the
// definitions and sharing nothing with planner/evaluation/evaluator.cc. Slow.
#pragma once

#include <vector>

#include "planner/plan/instance/instance.h"
#include "planner/plan/instance/stage_plan.h"

namespace lime {

struct OracleAnswer {
  bool feasible = false;
  double ms_per_step = 0;
  std::vector<double> used_mb, pool_mb;
  std::vector<double> most_held_mb;  // the most the pool of each device ever held
};

OracleAnswer AskOracle(const Instance& instance, const StagePlan& plan);

// When a prompt in so many chunks is through, as Evaluator::PromptMs of at most 48 sweeps.
double AskOraclePromptMs(const Instance& instance, const StagePlan& plan, int chunks, int per_sweep);

}  // namespace lime
