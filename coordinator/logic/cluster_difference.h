// Explains why a run over a cluster took more or less time than its plan predicts.
//
// Pure: compares what the devices report about their work with the plan's own numbers.
#pragma once

#include <string>
#include <vector>

#include "common/device_report.h"
#include "planner/plan/plan.h"
#include "planner/plan/prediction.h"

namespace lime {

// The work of a device under the plan. Zero: not known.
struct DeviceWork {
  std::string name;
  DeviceStatistics statistics;
};

struct LinkWork {
  std::string from, to;
  double bytes_per_second = 0;          // the newest one
  double planned_bytes_per_second = 0;  // used to make the plan
};

struct ClusterObservations {
  double steps = 0;           // decode steps, without those with a pause
  double decode_seconds = 0;  // of all these steps together
  double step_deviation_ms = 0;
  std::vector<DeviceWork> devices;
  std::vector<LinkWork> links;
  std::vector<std::vector<std::string>> shared;  // devices on one machine
};

// In milliseconds per token. Compares computing, disks and links with the plan. Names the cause
// that explains most of the difference, if it explains at least a quarter of it. Devices that share
// a machine count as one.
PredictionReport ExplainClusterDifference(const Plan& plan, double measured_ms, const ClusterObservations& seen);

}  // namespace lime
