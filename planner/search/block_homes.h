// For devices that hold only some blocks of a model: finds plans in which every device reads only
// blocks that it holds.
//
// The search does not know homes. Instead, a block takes very long on a device that does not hold
// it. So every plan with all blocks at home is better. The search starts from such plans.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "planner/plan/instance/stage_plan.h"
#include "planner/plan/model/model_spec.h"
#include "planner/plan/plan.h"
#include "planner/problem/plan_problem.h"

namespace lime {

// The blocks that each device holds, by its name. Other devices hold every block.
using BlockHomes = std::map<std::string, std::vector<BlockId>>;

bool HoldsBlock(const BlockHomes& homes, const std::string& device, BlockId id);

// The blocks that the device must read for the plan but does not hold, in execution order.
std::vector<BlockId> AwayFromHome(const BlockHomes& homes, const Plan& plan, int32_t device);
// Whether every device holds all blocks that it must read.
bool IsAtHome(const BlockHomes& homes, const Plan& plan);

// Sets the compute time of blocks on devices that do not hold them to hours.
void KeepAtHome(const BlockHomes& homes, PlanProblem& problem);

// Plans with all blocks at home, with as much resident as fits. If several devices hold a block, it
// goes to one that holds its neighbours, or to a preferred device; each device is preferred once.
// Empty if a block has no home, or if all devices hold every block.
std::vector<StagePlan> PlansAtHome(const BlockHomes& homes, const PlanProblem& problem);

}  // namespace lime
