// Sends the devices of a cluster blocks of a model: what `lime push` and `lime run --push` both do.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "coordinator/rpc/cluster_client.h"
#include "coordinator/rpc/push_blocks.h"
#include "daemon/weights/store_source.h"
#include "planner/plan/plan.h"

namespace lime::cli {

// One device of the cluster, and what it has got so far.
struct PushedDevice {
  ClusterClient::Device at;
  std::vector<BlockId> blocks;  // that it should hold
  bool whole = false;           // it reads a folder with the whole model, and is sent nothing
  absl::Status status;
  PushState state;

  bool own_weights() const { return whole || !at.weights.empty(); }
};

// What each device is to hold for the plan.
std::vector<PushedDevice> DevicesOfPlan(const ClusterClient::Options& cluster, const Plan& plan);

// The model that is sent; a line of progress while its checksums are made.
absl::StatusOr<std::unique_ptr<StoreSource>> OpenPushSource(const std::string& model);

struct ClusterPushOptions {
  const StoreSource& source;
  const ClusterKeys& keys;
  bool check = true;  // devices read back what they have
};
// All devices at once, with one line of progress. Returns the errors of all; each device's own is in its `status`.
absl::Status PushToAll(const ClusterPushOptions& options, std::vector<PushedDevice>& devices);

// "cleo         took 300.00 MiB of its 357.00 MiB in 2.1 s (142.00 MiB/s)".
std::string PushedLine(const PushedDevice& device);

}  // namespace lime::cli
