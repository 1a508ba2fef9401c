// Measures the devices of a cluster, each by itself, and the links between them.
#pragma once

#include <atomic>
#include <functional>
#include <string>
#include <vector>

#include "coordinator/cluster/device_profiles.h"
#include "coordinator/rpc/device_client.h"

namespace lime::cli {

struct ClusterProfileOptions {
  std::vector<std::string> weights;                      // by device: folder on it; empty: its own
  std::string config;                                    // config.json for devices that lack it
  double seconds = 5;                                    // disk; 2x for blocks, 0.5x for the rest
  double link_seconds = 1;                               // per link and direction
  std::function<void(double share)> progress;            // any thread, in turn
  std::function<void(const std::string& sentence)> say;  // reports failures; any thread, in turn
  const std::atomic<bool>* cancelled = nullptr;
};

// Devices on different machines measure at once. Devices of one machine, and links, measure one
// after another. The error is that of the first device that does not answer or refuses, for
// instance because a plan is in use.
absl::StatusOr<DescribedCluster> MeasureCluster(const DeviceClients& devices, const ClusterProfileOptions& options);

// The profiles that `lime profile --cluster` has stored beside the cluster's file; empty if it
// never ran.
absl::StatusOr<DescribedCluster> StoredProfiles(const std::string& cluster_path);

// Adds measurements of other models from `before`, if the hardware is the same.
void AddKnownModels(const DescribedCluster& before, DescribedCluster& measured);

}  // namespace lime::cli
