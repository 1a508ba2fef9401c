// What a device did of a run, as JSON.
#pragma once

#include "common/device_report.h"
#include "nlohmann/json.hpp"
#include "planner/plan/plan.h"

namespace lime::cli {

// The fields that a device has wherever it is: of a cluster, or this process.
nlohmann::json DeviceJson(const PlanDevice& device, const InstalledPlan& installed, const DeviceStatistics& statistics);

}  // namespace lime::cli
