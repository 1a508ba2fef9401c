// An independent evaluation of plans for tests: a discrete-event simulation of disks that read,
// pools that hold bytes and links that carry messages. It follows the definitions and shares no
// code with planner/evaluation/evaluator.cc. Slow.
#pragma once

#include <vector>

#include "planner/plan/instance/instance.h"
#include "planner/plan/instance/stage_plan.h"

namespace lime {

struct OracleAnswer {
  bool feasible = false;
  double ms_per_step = 0;
  std::vector<double> used_mb, pool_mb;
  std::vector<double> most_held_mb;  // the largest content of each device's pool at any time
};

OracleAnswer AskOracle(const Instance& instance, const StagePlan& plan);

// The time of a prompt in `chunks` chunks, as Evaluator::PromptMs, for at most 48 sweeps.
double AskOraclePromptMs(const Instance& instance, const StagePlan& plan, int chunks, int per_sweep);

}  // namespace lime
