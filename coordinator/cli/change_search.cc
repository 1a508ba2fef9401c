#include "coordinator/cli/change_search.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "coordinator/cli/cluster_planning.h"
#include "coordinator/cli/plan_rates.h"
#include "daemon/logic/order.h"
#include "planner/plan/kv_eviction.h"
#include "planner/plan/limits.h"
#include "planner/sim/simulator.h"

namespace lime::cli {
namespace {

constexpr double kUnloadMs = 500, kPauseMargin = 2;             // of a change to another plan
constexpr double kNotReading = 0.25;                            // of an installation's time: making room, compiling, opening
constexpr double kFirstSteps = 2;                               // that the next token takes: rings are empty
constexpr int64_t kKvAhead = 2 * kResidencyLead + kPageTokens;  // positions that a plan begins with beyond those that there are then
constexpr double kSearchLimits = 6;                             // time limits that the search takes at most, and the wait for the next step

}  // namespace

KvLevels LevelsOf(const Plan& plan, std::optional<OnlineRule> online) {
  if (EvictsKv(plan)) return MakeKvLevels(plan);
  if (GrowsKv(plan) && plan.reads == ReadsPerStep::kOnce && online) return MakeKvLevels(plan, {.rule = *online});
  return {.levels = {{ResidencyOf(plan), plan.predicted.ms_per_step}}};
}

absl::StatusOr<PlanWatcher::Candidate> SearchForChange(PlanInputs inputs, const PlanWatcher::Search& search,
                                                       const ChangeSearchOptions& options) {
  TakeRates(search.now, inputs);
  const auto ms_left = [&](const Plan& plan) {
    return MeanMs(LevelsOf(plan, options.online), search.left.pages, search.left.pages_at_end);
  };
  Plan today = AsItIsNow(inputs, search.current, search.made_with, search.now);
  LIME_ASSIGN_OR_RETURN(const SimulationResult simulated, SimulateDecode(today, {.timeline = false}));
  today.predicted.ms_per_step = simulated.MsPerStep();
  PlanWatcher::Candidate found{.ms_per_step = HUGE_VAL, .current_ms = ms_left(today)};
  std::vector<int64_t> kv_tokens = {0};
  if (inputs.request.kv_tokens > 0) {
    const auto meanwhile = static_cast<int64_t>(kSearchLimits * options.time_limit_ms / today.predicted.ms_per_step);
    const int64_t now = search.left.pages * kPageTokens / std::max<int64_t>(1, search.current.sequences) + kKvAhead + meanwhile;
    kv_tokens.push_back(std::min(inputs.request.context, std::max(inputs.request.kv_tokens, now)));
  }
  absl::Status none;
  for (const int64_t tokens : kv_tokens) {
    inputs.request.kv_tokens = tokens;
    absl::StatusOr<Plan> plan = ClusterPlanning({.time_limit_ms = options.time_limit_ms, .cancelled = &search.cancelled}, inputs).Run();
    none.Update(plan.status());
    if (!plan.ok()) continue;
    const double ms = ms_left(*plan);
    if (ms < found.ms_per_step) found.ms_per_step = ms, found.plan = *std::move(plan);
  }
  if (found.ms_per_step == HUGE_VAL) return none;
  const bool takes_over = TakesOver(search.current, found.plan, search.left.pages);
  if (takes_over) found.most_pages = MostPages(search.current, found.plan);
  const double share = kNotReading + ReadShare(search.current, found.plan, takes_over);
  found.install_ms = kUnloadMs + kPauseMargin * share * options.install_ms + kFirstSteps * found.ms_per_step;
  const auto prompt = static_cast<double>(std::max<int64_t>(1, inputs.request.prompt_tokens));
  found.replay_ms = kPauseMargin * (takes_over ? MoveKvMs(inputs, search.current, found.plan) : found.plan.predicted.ttft_ms / prompt);
  return found;
}

}  // namespace lime::cli
