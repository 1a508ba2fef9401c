#include "coordinator/planning/change_search.h"

#include <algorithm>
#include <utility>

#include "absl/time/clock.h"
#include "common/order.h"
#include "coordinator/planning/cluster_planning.h"
#include "coordinator/planning/plan_rates.h"
#include "planner/plan/kv_spill.h"
#include "planner/plan/plan_residency.h"
#include "planner/plan/plan_rows.h"
#include "planner/sim/simulator.h"

namespace lime {
namespace {

constexpr double kUnloadMs = 500, kPauseMargin = 2;  // for a change to another plan
// At least this share of an installation is not reading: freeing memory, compiling, opening.
constexpr double kNotReading = 0.25;
// The reads of the first installation count as this much slower than planned at most.
constexpr double kMostSlower = 2;
// The next token takes the time of so many steps, because rings are empty.
constexpr double kFirstSteps = 2;
// A plan begins with KV for so many positions beyond the present ones.
constexpr int64_t kKvAhead = 2 * kResidencyLead + kPageTokens;
// The search and the wait for the next step take at most so many time limits.
constexpr double kSearchLimits = 6;

}  // namespace

KvLevels LevelsOf(const Plan& plan, KvGrowth online, const std::atomic<bool>* cancelled) {
  if (!RetainsAllKv(plan)) return MakeKvLevels(plan);
  if (GrowsKv(plan) && !IsFixed(plan) && online)
    return MakeKvLevels(plan, {.rule = *online, .cancelled = [cancelled] { return cancelled != nullptr && cancelled->load(); }});
  return {.levels = {{ResidencyOf(plan), plan.predicted.ms_per_step}}};
}

std::vector<Residency> ResidenciesOf(const KvLevels& levels) {
  std::vector<Residency> residencies;
  for (const KvLevel& level : levels.levels) residencies.push_back(level.residency);
  return residencies;
}

namespace {

// The state of the requests at the time of the change, at most. The search plans for it.
struct Then {
  int64_t tokens = 0;  // per sequence, if all have the same length
  int64_t pages = 0;   // per layer
  int64_t known = 0;   // known positions of the longest sequence
  int64_t again = 0;   // positions whose logits would be computed again
};

Then ThenOf(const PlanWatcher::Search& search, double ms_per_step, double after_ms) {
  const int64_t sequences = std::max<int64_t>(1, search.current.sequences), context = search.current.context;
  const auto meanwhile = kKvAhead + static_cast<int64_t>(std::min(1e9, after_ms / ms_per_step));
  // If all layers give pages back, the pages in use do not tell how long sequences are.
  const bool all_give_back = WindowOf(search.current).positions > 0 && FullLayerPages(search.current) < sequences * KvPagesFor(context);
  const int64_t now = all_give_back ? search.remaining.known : search.remaining.pages * kPageTokens / sequences;
  const int64_t tokens = std::min(context, now + meanwhile);
  return {.tokens = tokens,
          .pages = std::min(FullLayerPages(search.current), sequences * ((tokens + kPageTokens - 1) / kPageTokens)),
          .known = std::min(context, std::max<int64_t>(1, search.remaining.known) + meanwhile),
          .again = search.remaining.again > 0 ? std::min(context, search.remaining.again + meanwhile) : 0};
}

// The plan at the level with at least `pages` pages.
Plan AtLevel(const Plan& plan, const std::vector<Residency>& levels, int64_t pages) {
  if (levels.empty()) return plan;
  const auto level = std::ranges::find_if(levels, [&](const Residency& of) { return of.layer_pages >= pages; });
  absl::StatusOr<Plan> then = WithResidency(plan, level == levels.end() ? levels.back() : *level);
  return then.ok() ? *std::move(then) : plan;
}

// Estimates installations on these devices from the first plan's installation.
class Installing {
 public:
  Installing(const ModelSpec& spec, const ChangeSearchOptions& options) : spec_(spec), install_ms_(options.install_ms) {
    const double read_ms = options.first != nullptr ? ReadWeightsMs(spec, *options.first) : 0;
    beside_ms_ = std::max(0.0, install_ms_ - read_ms);
    slower_ = read_ms > 0 ? std::clamp(install_ms_ / read_ms, 1.0, kMostSlower) : 1;
  }

  // Time to the first token by `after`, without the time for KV. The first installation took longer
  // than planned: either its reads were slower, or other work was needed that is needed again.
  double Ms(const Plan& after, double ms_per_step, const Plan* before = nullptr, int64_t pages = 0) const {
    const double read_ms = ReadWeightsMs(spec_, after, before, pages);
    const double install_ms = std::max(kNotReading * install_ms_ + slower_ * read_ms, beside_ms_ + read_ms);
    return kUnloadMs + kPauseMargin * install_ms + kFirstSteps * ms_per_step;
  }

 private:
  const ModelSpec& spec_;
  const double install_ms_;
  double beside_ms_ = 0, slower_ = 1;
};

// The time of one step of a prompt.
double SweepMs(const PlanInputs& inputs, const Plan& plan, int64_t known) {
  const auto rows = static_cast<double>(std::clamp<int64_t>(plan.prefill_chunk * plan.chunks_per_sweep, 1, known));
  return ComputeAgainMs(inputs, plan, known) * rows / static_cast<double>(known);
}

}  // namespace

absl::StatusOr<PlanWatcher::Candidate> SearchForChange(PlanInputs inputs, const PlanWatcher::Search& search,
                                                       const ChangeSearchOptions& options) {
  const absl::Time began = absl::Now();
  ApplyRates(search.now, inputs);
  const auto ms_left = [&](const KvLevels& levels) { return MeanMs(levels, search.remaining.pages, search.remaining.pages_at_end); };
  Plan today = AsItIsNow(inputs, search.current, search.made_with, search.now);
  LIME_ASSIGN_OR_RETURN(const SimulationResult simulated, SimulateDecode(today, {.timeline = false}));
  today.predicted.ms_per_step = simulated.MsPerStep();
  PlanWatcher::Candidate found{.ms_per_step = HUGE_VAL, .current_ms = ms_left(LevelsOf(today, options.online, &search.cancelled))};
  const Then planned = ThenOf(search, today.predicted.ms_per_step, kSearchLimits * options.time_limit_ms);
  std::vector<int64_t> kv_tokens = {0};
  if (inputs.request.kv_tokens > 0)
    kv_tokens.push_back(std::min(inputs.request.context, std::max(inputs.request.kv_tokens, planned.tokens)));
  absl::Status none;
  for (const int64_t tokens : kv_tokens) {
    inputs.request.kv_tokens = tokens;
    absl::StatusOr<Plan> plan =
        ClusterPlanning({.work_ms = options.time_limit_ms, .by_clock = options.by_clock, .cancelled = &search.cancelled}, inputs).Run();
    const absl::Status usable = plan.ok() ? CheckKvRoom(search.current, *plan, options.kv_room) : plan.status();
    none.Update(usable);
    if (!usable.ok()) continue;
    KvLevels levels = LevelsOf(*plan, options.online, &search.cancelled);
    const double ms = ms_left(levels);
    if (ms < found.ms_per_step) found.ms_per_step = ms, found.plan = *std::move(plan), found.levels = std::move(levels);
  }
  if (found.ms_per_step == HUGE_VAL) return none;

  // The run continued while the search planned, so its state is estimated again.
  const double search_ms = absl::ToDoubleMilliseconds(absl::Now() - began);
  const Then then = ThenOf(search, today.predicted.ms_per_step, std::max(search_ms, kSearchLimits * options.time_limit_ms));
  // Devices take up a level before its pages are needed.
  const int64_t ahead = search.current.sequences * ((2 * kResidencyLead + kPageTokens - 1) / kPageTokens);
  const Installing installing(inputs.spec, options);
  const auto again = [&](const Plan& plan, const std::vector<Residency>& levels, double ms_per_step) -> Pause {
    // The request waits until the plan has reached the level with its pages.
    const bool waits = GrowsKv(plan) && ResidencyOf(plan).layer_pages < then.pages;
    return {.fixed_ms = installing.Ms(plan, ms_per_step) + (waits ? 2 * kResidencyLead * ms_per_step : 0) +
                        kPauseMargin * ComputeAgainMs(inputs, AtLevel(plan, levels, then.pages + ahead), then.known, then.again)};
  };
  const Plan before = AtLevel(search.current, options.levels, std::max(search.remaining.level_pages, then.pages + ahead));
  found.computing_again = again(found.plan, ResidenciesOf(found.levels), found.ms_per_step);
  found.going_back = again(today, options.levels, found.current_ms);
  found.most_pages = then.pages;
  const int64_t soon = std::min(then.pages, search.remaining.pages + 2 * search.current.sequences);
  if (!TakesOver(before, found.plan, soon, options.kv_room)) return found;
  found.most_pages = std::min(then.pages, MostPages(before, found.plan, options.kv_room));
  found.in_prompt = !search.remaining.decodes;
  const Pause kv = MoveKv(inputs, before, found.plan);
  // If the decoding request ends, another one may still be in its prompt.
  const bool prompts = found.in_prompt || search.current.sequences > 1;
  const double in_prompt_ms = prompts ? kFirstSteps * SweepMs(inputs, found.plan, then.known) : 0;
  found.taking_over = Pause{
      .fixed_ms = installing.Ms(found.plan, found.ms_per_step, &before, found.most_pages) + kPauseMargin * (kv.fixed_ms + in_prompt_ms),
      .position_ms = kPauseMargin * kv.position_ms};
  return found;
}

}  // namespace lime
