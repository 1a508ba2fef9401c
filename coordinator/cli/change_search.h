// The search for another plan while one runs: what is best for the steps that are left, on devices and links as they are measured now.
#pragma once

#include <optional>
#include <vector>

#include "coordinator/cli/change_costs.h"
#include "coordinator/cli/plan_inputs.h"
#include "coordinator/serving/plan_watcher.h"
#include "planner/kv_levels.h"

namespace lime::cli {

struct ChangeSearchOptions {
  // How a plan goes on as its KV grows; nothing: it does not.
  std::optional<OnlineRule> online = OnlineRule::kLime;
  const Plan* first = nullptr;  // the plan that was installed first
  double install_ms = 0;        // what that took
  double time_limit_ms = 3000;
  bool by_clock = true;           // false: the limit sets the amount of work alone, so that a busy machine finds the same plan
  std::vector<Residency> levels;  // of the plan in use, as KV grows; empty: it stays as it is
  KvRoom kv_room;
};

// What streams as KV grows, the plan's own first; that alone where all KV is there from the start, or KV does not grow.
KvLevels LevelsOf(const Plan& plan, std::optional<OnlineRule> online);

// Two plans are looked for, one with KV for what there is, to grow from, and one with all of it; the faster one over the levels of KV that
// the steps that are left go through, beside what those take by the plan in use. `inputs`: what the first plan was made for. Each of
// the two takes a few searches of the time limit. ResourceExhausted where disks have no room for the KV of either.
absl::StatusOr<PlanWatcher::Candidate> SearchForChange(PlanInputs inputs, const PlanWatcher::Search& search,
                                                       const ChangeSearchOptions& options);

}  // namespace lime::cli
