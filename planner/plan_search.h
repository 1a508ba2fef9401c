// The best plan of the whole plan space that can be found: every plan of small instances, else structured starts and annealing on the
// exact evaluation, of whole model blocks first where they are in pieces.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "planner/annealer.h"
#include "planner/assignment.h"
#include "planner/first_token.h"
#include "planner/plan/instance.h"
#include "planner/plan/stage_plan.h"

namespace lime {

inline constexpr double kMaxTimeLimitMs = 3'600'000;

struct SearchOptions {
  Granularity granularity = Granularity::kBlock;
  uint64_t seed = 1;
  double time_limit_ms = 5000;
  // Milliseconds since the search was asked for; empty: the amount of work that takes about half of the time limit is the only limit.
  std::function<double()> elapsed_ms;
  double max_work = 1e18;        // in units of SearchBudget, where that is to be less
  double good_enough_ms = 0;     // a lower bound: nobody looks on once it is reached
  bool exhaustive = true;        // where an instance is small
  bool may_reload = false;       // PlanBatches: a plan may read what streams for every micro-batch, where that is faster
  std::vector<StagePlan> seeds;  // to start from as well: the answer is never worse than one that fits and has its stages where they may be
  std::optional<MoveCost> move_cost;           // where a plan is in force
  std::optional<FirstTokenBound> first_token;  // what is slower to the first token is no plan
};

struct FoundPlan {
  bool feasible = false;
  StagePlan plan;
  double ms_per_step = 0;                 // by Evaluator
  double cost = 0;                        // ms_per_step, and what moving costs
  bool optimal = false;                   // every plan was looked at
  bool reloads = false;                   // every micro-batch reads what streams; else a step reads it once
  std::string reason;                     // why none is feasible
  std::optional<FirstToken> first_token;  // where it is bounded
};

// Whether memory shows, without a search, that no plan fits: KV, and where no device has a disk the weights, are more than there is; or a
// block is larger than every device. False says nothing.  REQUIRES: instance.Validate().ok()
bool CannotFit(const Instance& instance);

// Deterministic for a seed as long as `elapsed_ms` does not end it.  REQUIRES: instance.Validate().ok(), the seeds valid, the bound's
// problem valid for `instance`
FoundPlan SearchPlan(const Instance& instance, const SearchOptions& options);

}  // namespace lime
