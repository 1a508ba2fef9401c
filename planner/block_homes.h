// Devices that hold only some blocks of a model: the plans that make none of them read anything else.
//
// The search knows nothing of homes. A block takes so long on a device that does not hold it that any plan with all blocks at home is
// better, and the search begins at such plans.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "planner/plan/model_spec.h"
#include "planner/plan/plan.h"
#include "planner/plan/stage_plan.h"
#include "planner/plan_problem.h"

namespace lime {

// What each device holds, by its name; devices that are not named hold every block.
using BlockHomes = std::map<std::string, std::vector<BlockId>>;

bool HoldsBlock(const BlockHomes& homes, const std::string& device, BlockId id);

// Blocks that the plan makes the device read and that it does not hold, in execution order.
std::vector<BlockId> AwayFromHome(const BlockHomes& homes, const Plan& plan, int32_t device);
// Whether it has none anywhere.
bool IsAtHome(const BlockHomes& homes, const Plan& plan);

// Makes blocks take their time where they are not held: hours.
void KeepAtHome(const BlockHomes& homes, PlanProblem& problem);

// Plans with all blocks at home, each device as much in memory as fits: where several devices hold a block, one that holds its neighbours,
// or the one that is preferred, each in turn. None where a block has no home, or all
// devices hold every block.
std::vector<StagePlan> PlansAtHome(const BlockHomes& homes, const PlanProblem& problem);

}  // namespace lime
