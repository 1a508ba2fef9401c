// The devices of a cluster before a plan is made: whether all answer, and which blocks of the model
// each one holds.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "coordinator/devices/cluster_file.h"
#include "planner/plan/sparse_parts.h"
#include "planner/search/block_homes.h"

namespace lime::cli {

// The answers of the devices.
struct ClusterHoldings {
  BlockHomes homes;                      // of devices that hold only some blocks
  std::set<std::string> no_push;         // devices that accept no push
  std::map<std::string, Bytes> runtime;  // memory of limed itself, on devices without a plan
  // For sparse MLPs, of every device. Pushed weights come without any.
  std::map<std::string, NeuronFiles> neurons;
};

// Asks all devices at once. Unavailable, in one sentence that names every silent device and says
// how to continue without them.
absl::StatusOr<std::vector<DeviceHealth>> AskHealthOfAll(const DeviceClients& devices);

// `model`: its digest, for devices that use pushed weights; 0: not given.
absl::StatusOr<ClusterHoldings> AskHoldings(const ClusterFile& file, const DeviceClients& devices, uint64_t model);

// If a device that accepts no push lacks blocks: what to do, one sentence per device. Else empty.
std::string HowToAcceptPushes(const ClusterFile& file, const ClusterHoldings& holdings);

}  // namespace lime::cli
