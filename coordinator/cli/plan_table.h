// A plan as a person reads it.
#pragma once

#include <string>

#include "coordinator/cli/plan_report.h"

namespace lime::cli {

// Prediction and its bound, a table of devices, a memory bar for each, why each is used or left out, what was assumed. ASCII, lines of
// about `columns`.
std::string PlanText(const PlanReport& report, int columns);

// One letter for each kind of memory, in proportion to the budget: "RAAKKWWWWWWWWWSS....".  REQUIRES: width >= 1
std::string MemoryBar(const PlanMemory& memory, Bytes budget, int width);

}  // namespace lime::cli
