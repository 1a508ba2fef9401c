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

// Whether devices can go on from one plan to the other with KV of so many pages of each layer: there is room for it and, beside it in
// memory, for what the plan before has there, neither plan evicts any, and the kernels that go on have the order of those before.
bool TakesOver(const Plan& before, const Plan& after, int64_t pages);
// The most pages for which it is so.  REQUIRES: TakesOver with 0 pages
int64_t MostPages(const Plan& before, const Plan& after);

// The time that the slowest disk takes to read what stays in memory under `after`, in times what it took under `before`. Where parts that
// are in memory under `before` stay, they are not read.
double ReadShare(const Plan& before, const Plan& after, bool parts_stay);

// What one position of every sequence takes on its way where KV follows its layers from one plan to the other: of the slowest device, what
// comes over links and what it copies.
double MoveKvMs(const PlanInputs& inputs, const Plan& before, const Plan& after);

}  // namespace lime::cli
