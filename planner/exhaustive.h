// Every plan of a small instance, with branch and bound: blocks in order, each on every device, resident or streamed.
#pragma once

#include <limits>
#include <optional>

#include "planner/assignment.h"
#include "planner/first_token.h"
#include "planner/search_budget.h"

namespace lime {

struct Exhaustion {
  Granularity granularity = Granularity::kBlock;
  std::optional<MoveCost> move_cost;
  const FirstTokenBound* first_token = nullptr;
  double incumbent_cost = std::numeric_limits<double>::infinity();  // only what costs less is of interest
};

struct Exhausted {
  bool complete = false;             // every plan was looked at or cannot be better
  std::optional<Assignment> better;  // the best plan found below the incumbent's cost, by the exact evaluation
  double cost = 0;                   // of `better`, else the incumbent's
  double least_first_token_ms = std::numeric_limits<double>::infinity();  // of the plans that were too late with it
};

// REQUIRES: instance.Validate().ok()
Exhausted SearchAll(const Instance& instance, const Exhaustion& options, SearchBudget& budget);

}  // namespace lime
