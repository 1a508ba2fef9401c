// Finds the best plan of a small instance by branch and bound over all plans: it tries each block,
// in order, on every device, resident and streamed.
#pragma once

#include <limits>
#include <optional>

#include "planner/evaluation/assignment.h"
#include "planner/evaluation/first_token.h"
#include "planner/search/search_budget.h"

namespace lime {

struct Exhaustion {
  Granularity granularity = Granularity::kBlock;
  std::optional<MoveCost> move_cost;
  const FirstTokenBound* first_token = nullptr;
  double incumbent_cost = std::numeric_limits<double>::infinity();  // only cheaper plans count
};

struct Exhausted {
  bool complete = false;  // every plan was examined, or cannot be better
  // The best plan cheaper than the incumbent, by the exact evaluation.
  std::optional<Assignment> better;
  double cost = 0;  // of `better`, else of the incumbent
  // The shortest time to the first token among plans that exceed its bound.
  double least_first_token_ms = std::numeric_limits<double>::infinity();
};

// REQUIRES: instance.Validate().ok()
Exhausted SearchAll(const Instance& instance, const Exhaustion& options, SearchBudget& budget);

}  // namespace lime
