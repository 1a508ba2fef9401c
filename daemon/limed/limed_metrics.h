// The metrics of limed. Pure, but for those of the process.
#pragma once

#include <string>

#include "common/device_report.h"
#include "planner/plan/plan.h"

namespace lime {

// `statistics` and `memory`: of the installed plan; of none, zeros and epoch -1. The counters begin
// again with every plan.
std::string LimedMetricsText(const DeviceStatistics& statistics, const PlanMemory& memory);

}  // namespace lime
