// Checks of `lime doctor` on the devices of a cluster: asks each device for its health, and lets it
// inspect its own machine.
#pragma once

#include <string>
#include <vector>

#include "coordinator/cluster/device_profiles.h"
#include "coordinator/devices/cluster_file.h"
#include "nlohmann/json_fwd.hpp"
#include "planner/base/finding.h"
#include "proto/convert/convert.h"
#include "proto/diagnosis/diagnosis.h"

namespace lime::cli {

// A row of `lime doctor`.
struct Checked {
  std::string of;  // a device, or "this machine"
  Finding finding;
  Fault fault = Fault::kNone;  // if a device does not answer properly
};

struct DeviceCheckOptions {
  absl::Duration patience = absl::Seconds(3);  // for an answer
  double disk_seconds = 0.5;                   // for the rate of a disk
  double link_seconds = 0.05;                  // per link and direction; 0: no measurement
};
// Checks all devices at once, then the links between devices that answer and have no plan in use.
// `stored`: results of earlier calls of `lime profile`.
std::vector<Checked> CheckDevices(const ClusterFile& file, const DescribedCluster& stored, const DeviceCheckOptions& options);

// For a device that answers.
Finding CheckRelease(const DeviceHealth& health);
Finding CheckClock(const DeviceHealth& health, std::time_t now);
// Notices about keys that have expired or expire within 30 days, on this machine and on every
// device in `health` (null: it does not answer).
std::vector<std::string> ExpiryNotices(const ClusterKeys& own, const std::vector<std::pair<std::string, const DeviceHealth*>>& health,
                                       std::time_t now);

// The user of a plan: {"user", "host", "address", "seconds", "since"}.
nlohmann::json UsedByJson(const PlanUser& user);

}  // namespace lime::cli
