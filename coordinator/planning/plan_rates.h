// Applies measured rates to the inputs of a search, and to the plan in use. Pure.
#pragma once

#include "coordinator/logic/cluster_rates.h"
#include "coordinator/planning/plan_inputs.h"
#include "planner/plan/plan.h"

namespace lime {

// The rates that the plan depends on, from the cluster's files.
ClusterRates PlannedRates(const PlanInputs& inputs, const Plan& plan);

// Replaces the rates of the files: scales the profiles of devices, sets links.
void ApplyRates(const ClusterRates& rates, PlanInputs& inputs);

// The plan in use on the devices and links of `inputs`, which already have the rates `now`.
// `made_with`: rates of disks and computing that the plan was made with; missing ones are 1.
Plan AsItIsNow(const PlanInputs& inputs, const Plan& current, const ClusterRates& made_with, const ClusterRates& now);

}  // namespace lime
