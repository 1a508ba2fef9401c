// Every plan of a small instance, with branch and bound: blocks in order, each on every device, resident or streamed.
#pragma once

#include <optional>

#include "planner/assignment.h"
#include "planner/move_cost.h"
#include "planner/search_budget.h"

namespace lime {

struct Exhausted {
  bool complete = false;             // every plan was looked at or cannot be better
  std::optional<Assignment> better;  // the best plan found below the incumbent's cost, by the exact evaluation
  double cost = 0;                   // of `better`, else the incumbent's
};

// The best plan that costs less than `incumbent_cost`.  REQUIRES: instance.Validate().ok()
Exhausted SearchAll(const Instance& instance, Granularity granularity, const std::optional<MoveCost>& move_cost, double incumbent_cost,
                    SearchBudget& budget);

}  // namespace lime
