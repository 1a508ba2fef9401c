#include "planner/replan.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "planner/evaluation/evaluator.h"

namespace lime {
namespace {

double SwitchMs(const ReplanProblem& problem, const StagePlan& plan) {
  const int blocks = problem.instance.NumBlocks();
  const Assignment before = ToAssignment(problem.current, blocks), after = ToAssignment(plan, blocks);
  double moved_mb = 0;
  for (int b = 0; b < blocks; ++b) {
    if (before.device[b] != after.device[b]) moved_mb += problem.instance.blocks[b].mb + problem.instance.blocks[b].kv_mb;
  }
  return moved_mb > 0 ? moved_mb / problem.move_mb_per_ms : 0;
}

}  // namespace

Replan PlanAgain(const ReplanProblem& problem, SearchOptions options) {
  StagePlan current = problem.current;
  const bool still_valid = current.Validate(problem.instance).ok();
  if (!still_valid) current.embedding_by_rows = false;  // the first device can no longer read rows
  const double current_ms = Evaluator(problem.instance).MsPerStep(current);
  const bool fits = still_valid && std::isfinite(current_ms);
  Replan out = {.feasible = fits, .plan = problem.current, .ms_per_step = current_ms};
  if (fits && problem.remaining_steps == 0) return out;
  const double steps = std::max(1.0, problem.remaining_steps);
  options.move_cost =
      MoveCost{.home = ToAssignment(problem.current, problem.instance.NumBlocks()).device,
               .ms_per_mb = problem.move_mb_per_ms > 0 ? 1 / (problem.move_mb_per_ms * steps) : std::numeric_limits<double>::infinity()};
  options.seeds.push_back(current);
  FoundPlan found = SearchPlan(problem.instance, options);
  if (!found.feasible) {
    out.reason = found.reason;
    return out;
  }
  const double switch_ms = SwitchMs(problem, found.plan);
  if (fits && (current_ms - found.ms_per_step) * problem.remaining_steps <= switch_ms) return out;
  return {.feasible = true, .changed = true, .plan = std::move(found.plan), .switch_ms = switch_ms, .ms_per_step = found.ms_per_step};
}

}  // namespace lime
