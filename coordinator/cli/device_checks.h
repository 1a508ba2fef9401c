// What `lime doctor` looks at of the devices of a cluster: each is asked how it is, and looks at its own machine.
#pragma once

#include <string>
#include <vector>

#include "coordinator/cli/cluster_file.h"
#include "coordinator/cluster/device_profiles.h"
#include "nlohmann/json_fwd.hpp"
#include "planner/base/finding.h"
#include "proto/convert.h"
#include "proto/diagnosis.h"

namespace lime::cli {

// A row of `lime doctor`.
struct Checked {
  std::string of;  // a device, or "this machine"
  Finding finding;
  Fault fault = Fault::kNone;  // where a device does not answer as it should
};

struct DeviceCheckOptions {
  absl::Duration patience = absl::Seconds(3);  // for a device to answer
  double disk_seconds = 0.5;                   // for the rate of a disk
  double link_seconds = 0.05;                  // for each way between two devices; 0: they are not measured
};
// All devices at once, then the links between those that answer and have no plan in use. `kept`: what `lime profile` has measured.
std::vector<Checked> CheckDevices(const ClusterFile& file, const DescribedCluster& kept, const DeviceCheckOptions& options);

// Of a device that answers.
Finding CheckRelease(const DeviceHealth& health);
Finding CheckClock(const DeviceHealth& health, std::time_t now);
// What to tell of keys that expire within 30 days, or have: of this machine and of every device in `health` (null: it does not answer).
std::vector<std::string> ExpiryNotices(const ClusterKeys& own, const std::vector<std::pair<std::string, const DeviceHealth*>>& health,
                                       std::time_t now);

// Who uses a plan: {"user", "host", "address", "seconds", "since"}.
nlohmann::json UsedByJson(const PlanUser& user);

}  // namespace lime::cli
