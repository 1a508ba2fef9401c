// The devices of a cluster before a plan is made for them: whether all are there, and which blocks of the model each holds.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "coordinator/cli/cluster_file.h"
#include "planner/block_homes.h"

namespace lime::cli {

// Of the devices that are asked.
struct ClusterHoldings {
  BlockHomes homes;                      // of devices that do not hold the whole model
  std::set<std::string> keep;            // of them, those that nothing can be pushed to
  std::map<std::string, Bytes> runtime;  // memory that limed itself takes now, where no plan is installed
};

// Asks all devices at once. Unavailable, in one sentence that names all that do not answer and says how to go on without them.
absl::StatusOr<std::vector<DeviceHealth>> AskHealth(const std::vector<std::unique_ptr<DeviceClient>>& devices);

// `model`: its digest, for devices that have no weights of their own; 0: not said.
absl::StatusOr<ClusterHoldings> AskHoldings(const ClusterFile& file, const std::vector<std::unique_ptr<DeviceClient>>& devices,
                                            uint64_t model);

// What is to be done where a device that nothing can be pushed to lacks blocks, a sentence for each; empty where there is none.
std::string HowToTakePushes(const ClusterFile& file, const ClusterHoldings& holdings);

}  // namespace lime::cli
