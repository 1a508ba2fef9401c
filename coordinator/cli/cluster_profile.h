// What the devices of a cluster can do, each measured on itself, and the ways between them.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "coordinator/cluster/device_profiles.h"
#include "coordinator/rpc/device_client.h"

namespace lime::cli {

struct ClusterProfileOptions {
  std::vector<std::string> weights;                      // by device: folder on it; empty: its own
  std::string config;                                    // config.json of the model, for devices that do not have it
  double seconds = 5;                                    // for each device's disk, twice as much for its blocks, half for the rest
  double link_seconds = 1;                               // for each way from one device to another
  std::function<void(double share)> progress;            // on any thread, one at a time
  std::function<void(const std::string& sentence)> say;  // what could not be measured; on any thread, one at a time
  const std::atomic<bool>* cancelled = nullptr;
};

// Devices of different machines measure at once, those of one machine and the ways one after the other. The error is of the first device
// that does not answer or refuses, as one does where a plan is in use.
absl::StatusOr<DescribedCluster> MeasureCluster(const std::vector<std::unique_ptr<DeviceClient>>& devices,
                                                const ClusterProfileOptions& options);

// What `lime profile --cluster` has kept beside the cluster's file; nothing where it never ran.
absl::StatusOr<DescribedCluster> KeptProfiles(const std::string& cluster_path);

// Keeps what `before` knew of other models on the same hardware.
void AddKnownModels(const DescribedCluster& before, DescribedCluster& measured);

}  // namespace lime::cli
