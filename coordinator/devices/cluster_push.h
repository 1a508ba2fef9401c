// Sends blocks of a model to the devices of a cluster, for `lime push` and `lime run --push`.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "coordinator/rpc/cluster_client.h"
#include "coordinator/rpc/push_blocks.h"
#include "daemon/stores/store_source.h"
#include "planner/plan/plan.h"

namespace lime::cli {

// One device of the cluster and the progress of its push.
struct PushedDevice {
  ClusterClient::Device at;
  std::vector<BlockId> blocks;         // that it should hold
  std::vector<int32_t> sparse_layers;  // that it computes from bundles
  bool whole = false;                  // it reads a folder with the whole model; nothing is sent
  absl::Status status;
  PushState state;

  bool own_weights() const { return whole || !at.weights.empty(); }
};

// The blocks that each device needs for the plan.
std::vector<PushedDevice> DevicesOfPlan(const ClusterClient::Options& cluster, const Plan& plan);

// Opens the model to send. Shows a progress line while it computes checksums.
absl::StatusOr<std::unique_ptr<StoreSource>> OpenPushSource(const std::string& model);

// FailedPrecondition names a device that would receive weights and also needs bundles, which are not
// pushed.
absl::Status CheckNeedNoBundles(const std::vector<PushedDevice>& devices);

struct ClusterPushOptions {
  const StoreSource& source;
  const ClusterKeys& keys;
  bool check = true;  // devices read back and check what they have
};
// Sends to all devices at once, with one progress line. Returns the errors of all devices; each
// `status` has the device's own.  REQUIRES: CheckNeedNoBundles accepts the devices
absl::Status PushToAll(const ClusterPushOptions& options, std::vector<PushedDevice>& devices);

// "cleo         took 300.00 MiB of its 357.00 MiB in 2.1 s (142.00 MiB/s)".
std::string PushedLine(const PushedDevice& device);

}  // namespace lime::cli
