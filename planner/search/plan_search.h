// Finds the best plan in the whole plan space. Small instances: all plans. Others: structured
// starts and annealing on the exact evaluation, with whole model blocks first if blocks are given
// in parts.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "planner/evaluation/assignment.h"
#include "planner/evaluation/first_token.h"
#include "planner/plan/instance/instance.h"
#include "planner/plan/instance/stage_plan.h"
#include "planner/search/annealer.h"

namespace lime {

inline constexpr double kMaxTimeLimitMs = 3'600'000;

struct SearchOptions {
  Granularity granularity = Granularity::kBlock;
  uint64_t seed = 1;
  double time_limit_ms = 5000;
  // Milliseconds since the search began. Empty: the only limit is the work that takes about half of
  // the time limit.
  std::function<double()> elapsed_ms;
  double max_work = 1e18;     // in units of SearchBudget
  double good_enough_ms = 0;  // the search ends at this time per step, a lower bound
  bool exhaustive = true;     // for small instances
  // PlanBatches: plans may read streamed parts for every micro-batch, if that is faster.
  bool may_reload = false;
  // Plans to start from. The answer is never worse than a seed that fits and obeys `granularity`.
  std::vector<StagePlan> seeds;
  std::optional<MoveCost> move_cost;           // if a plan is in use
  std::optional<FirstTokenBound> first_token;  // plans beyond this bound are infeasible
};

struct FoundPlan {
  bool feasible = false;
  StagePlan plan;
  double ms_per_step = 0;                 // by Evaluator
  double cost = 0;                        // ms_per_step plus the cost of moving
  bool optimal = false;                   // all plans were examined
  bool reads_once = true;                 // Plan::reads_once
  std::string reason;                     // why no plan is feasible
  std::optional<FirstToken> first_token;  // if it is bounded
};

// Whether memory alone proves that no plan fits: all KV (and all weights, if no device has a disk)
// exceed the memory, or a block exceeds every device. False proves nothing.  REQUIRES:
// instance.Validate().ok()
bool CannotFit(const Instance& instance);

// Deterministic for a seed unless `elapsed_ms` ends it.  REQUIRES: instance.Validate().ok(), the
// seeds valid, the bound's problem valid for `instance`
FoundPlan SearchPlan(const Instance& instance, const SearchOptions& options);

}  // namespace lime
