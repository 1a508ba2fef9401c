// Plans as text for people.
#pragma once

#include <string>

#include "planner/plan/plan.h"

namespace lime {

// The prediction, a line for the memory of each device, a line for each stage.
std::string PlanText(const Plan& plan);

}  // namespace lime
