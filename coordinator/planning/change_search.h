// The search for another plan during a run: the best plan for the remaining steps, with the rates
// that devices and links have now.
#pragma once

#include <atomic>
#include <vector>

#include "coordinator/planning/change_costs.h"
#include "coordinator/planning/plan_inputs.h"
#include "coordinator/serving/plan_watcher.h"
#include "planner/kv/kv_levels.h"

namespace lime {

struct ChangeSearchOptions {
  KvGrowth online = kLimeRule;
  const Plan* first = nullptr;  // the plan that was installed first
  double install_ms = 0;        // the time of its installation
  double time_limit_ms = 3000;
  bool by_clock = true;           // false: the limit bounds the work, not the time
  std::vector<Residency> levels;  // of the plan in use; empty: its KV does not grow
  KvRoom kv_room;
};

// The levels of a plan as its KV grows, its own first. Only its own if all KV is there from the
// start, or if KV does not grow. Ends soon after `cancelled` is set; the result is then useless.
KvLevels LevelsOf(const Plan& plan, KvGrowth online, const std::atomic<bool>* cancelled = nullptr);

std::vector<Residency> ResidenciesOf(const KvLevels& levels);

// Searches for two plans: one that begins with KV for the present positions and grows, and one with
// all KV. Returns the plan that is faster in the mean over the levels of the remaining steps, with
// the time of the plan in use for the same steps. `inputs`: the inputs of the first plan. Each of
// the two searches takes a few times the time limit. ResourceExhausted if the disks have no room
// for the KV of either plan.
absl::StatusOr<PlanWatcher::Candidate> SearchForChange(PlanInputs inputs, const PlanWatcher::Search& search,
                                                       const ChangeSearchOptions& options);

}  // namespace lime
