// Chooses the plan of a cluster whose devices hold only some blocks of the model: a plan for these
// blocks, unless another plan is so much faster that sending its blocks is worth it.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "coordinator/devices/cluster_devices.h"
#include "coordinator/planning/plan_inputs.h"
#include "planner/base/names.h"
#include "planner/plan/plan.h"

namespace lime {

// The minimum gain per token for which blocks are sent: about the error of predictions.
inline constexpr double kWorthPushing = 0.1;

enum class PlanSource {
  kGiven,  // a file
  kBest,   // the best one found, for any blocks
  kHeld,   // the best one found for the blocks that devices hold
};
inline constexpr Names<PlanSource, 3> kSourceNames = {
    {{PlanSource::kGiven, "given"}, {PlanSource::kBest, "best"}, {PlanSource::kHeld, "held"}}};

struct HeldPlan {
  Plan plan;
  PlanSource source = PlanSource::kBest;
  std::optional<Plan> faster;  // by more than kWorthPushing, if pushing is not allowed
  std::string sparsity_why;    // ClusterPlanning::sparsity_why
};

// Makes a plan for inputs whose `homes` limit the blocks that each device may read.
// ResourceExhausted if none fits.
using SearchPlanFor = std::function<absl::StatusOr<Plan>(PlanInputs inputs)>;

// With `may_push` the plan may need blocks that devices lack. FailedPrecondition, with the missing
// blocks, if no plan fits with the present blocks and pushing is not allowed.
absl::StatusOr<HeldPlan> ChooseHeldPlan(const PlanInputs& inputs, const cli::ClusterHoldings& holdings, bool may_push,
                                        const SearchPlanFor& search);

// `device "cleo" lacks 3 of 6 blocks that the plan needs here (mlp 3, attention 5, head)`, joined
// by "; ". Empty if no block is missing.
std::string Lacking(const BlockHomes& homes, const Plan& plan);

}  // namespace lime
