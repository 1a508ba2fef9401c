// Why a run over a cluster took longer, or less long, than its plan says.
//
// Pure: from what the devices tell of their work, beside the plan's own figures.
#pragma once

#include <string>
#include <vector>

#include "planner/base/bytes.h"
#include "planner/plan/plan.h"
#include "planner/plan/prediction.h"

namespace lime {

// What a device did under the plan. Zero where it is not known.
struct DeviceWork {
  std::string name;
  double decode_ms = 0, planned_decode_ms = 0;  // computing what the plan says to take so long
  double disk_ms = 0;                           // that the disk was at work
  Bytes disk_bytes = 0;                         // read in that time
};

struct LinkWork {
  std::string from, to;
  double bytes_per_second = 0;          // seen last
  double planned_bytes_per_second = 0;  // that the plan was made with
};

struct ClusterObservations {
  double steps = 0;           // that decoded, without those that held a pause
  double decode_seconds = 0;  // of them together
  double step_deviation_ms = 0;
  std::vector<DeviceWork> devices;
  std::vector<LinkWork> links;
  std::vector<std::vector<std::string>> shared;  // devices that are on one machine (coordinator/cluster/shared_machine.h)
};

// Milliseconds per token. Of devices that compute or read slower than the plan says and links that are slower, names the one that explains
// most of the difference, if it explains a quarter; of devices that share a machine, together with those they share it with.
PredictionReport ExplainClusterDifference(const Plan& plan, double measured_ms, const ClusterObservations& seen);

}  // namespace lime
