// From rates that were measured to what a search plans with, and to what the plan in use takes now. Pure.
#pragma once

#include "coordinator/cli/plan_inputs.h"
#include "coordinator/logic/cluster_rates.h"
#include "planner/plan/plan.h"

namespace lime::cli {

// The rates that the plan depends on, as the cluster's files tell them.
ClusterRates PlannedRates(const PlanInputs& inputs, const Plan& plan);

// Puts the rates in the place of what the files tell: profiles of devices that are so many times as fast, links.
void TakeRates(const ClusterRates& rates, PlanInputs& inputs);

// The plan in use on the devices and links of `inputs`, which have taken the rates `now`. `made_with`: those of disks and computing that
// the plan was made with; 1 where they are not named.
Plan AsItIsNow(const PlanInputs& inputs, const Plan& current, const ClusterRates& made_with, const ClusterRates& now);

}  // namespace lime::cli
