// Plans for people.
#pragma once

#include <string>

#include "planner/plan/plan.h"

namespace lime {

// The prediction, a line of memory for each device, a line for each stage.
std::string PlanText(const Plan& plan);

}  // namespace lime
