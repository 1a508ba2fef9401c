// Which plan a cluster runs, where its devices hold only some blocks of the model: one for the blocks that they hold, unless another is
// faster by more than sending its blocks is worth.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "coordinator/cli/cluster_devices.h"
#include "coordinator/cli/plan_inputs.h"
#include "planner/base/names.h"
#include "planner/plan/plan.h"

namespace lime::cli {

// Blocks are sent for another plan only where a token takes so much less time by it: about as far as predictions are off.
inline constexpr double kWorthPushing = 0.1;

enum class PlanSource {
  kGiven,  // a file
  kBest,   // the best that was found for the devices, whatever they hold
  kHeld,   // the best that was found for the blocks that they hold
};
inline constexpr Names<PlanSource, 3> kSourceNames = {
    {{PlanSource::kGiven, "given"}, {PlanSource::kBest, "best"}, {PlanSource::kHeld, "held"}}};

struct HeldPlan {
  Plan plan;
  PlanSource source = PlanSource::kBest;
  std::optional<Plan> faster;  // by more than kWorthPushing, where blocks may not be pushed
};

// Makes a plan for inputs whose `homes` say which blocks a plan may make each device read. ResourceExhausted where none fits.
using SearchPlanFor = std::function<absl::StatusOr<Plan>(PlanInputs inputs)>;

// With `may_push` the plan may need blocks that are not there yet. FailedPrecondition, which says what the devices lack, where no plan fits
// with the blocks that are there and others may not be pushed.
absl::StatusOr<HeldPlan> ChooseHeldPlan(const PlanInputs& inputs, const ClusterHoldings& holdings, bool may_push,
                                        const SearchPlanFor& search);

// `device "cleo" lacks 3 of 6 blocks that the plan needs here (mlp 3, attention 5, head)`, joined by "; "; empty where all are there.
std::string Lacking(const BlockHomes& homes, const Plan& plan);

}  // namespace lime::cli
