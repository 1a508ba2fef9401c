// Searches how much KV to keep if memory has no room for all KV, for strategies that neither stream
// weights nor move KV (planner/plan/baselines/eviction.h).
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "planner/base/status.h"
#include "planner/plan/model/model_spec.h"
#include "planner/plan/plan.h"
#include "planner/problem/plan_problem.h"

namespace lime {

// The part of PlanInputs that depends on the KV that is retained.
struct RetainedKv {
  PlanRequest request;
  std::vector<ClusterDevice> devices;
};

struct RetainedKvSearch {
  int64_t most_rows = 0;  // of the largest micro-batch for which `devices` have activations
  double bound_ms = 0;    // lower bound of a step, for plans that keep all KV
  std::function<absl::StatusOr<Plan>(const RetainedKv& retained)> search;
  std::function<void()> best;  // called if the last search found the best plan so far
  std::function<bool()> ends;
};

// For each size of micro-batch, finds the most KV that leaves room to compute the rest again.
// Returns the plan that is fastest at the end of the context; ResourceExhausted if there is none.
absl::StatusOr<Plan> SearchRetainedKv(const ModelSpec& spec, const RetainedKv& all, const RetainedKvSearch& how);

}  // namespace lime
