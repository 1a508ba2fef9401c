// The blocks that a device reads for a plan.
#pragma once

#include <cstdint>
#include <vector>

#include "planner/plan/model/model_spec.h"
#include "planner/plan/plan.h"

namespace lime {

// Blocks of PartsOn in execution order, and the embedding if the device has the first stage.
std::vector<BlockId> BlocksOn(const Plan& plan, int32_t device);

// Whether the device computes the head or parts of it.
bool HasHead(const Plan& plan, int32_t device);

// Parts whose weights the device has, ascending: those of its stages that have no host, and those
// of other devices' stages whose host it is.
std::vector<int> PartsOn(const Plan& plan, int32_t device);

// Units on demand on a host (PlanPart::host), such as experts of a layer that are divided over the
// disks of several devices. Whether the host has units of a stage of the owner; whether the device
// has units of any other device's stage; whether any part has a host.
bool HostsUnitsOf(const Plan& plan, int32_t host, int32_t owner);
bool HostsUnits(const Plan& plan, int32_t device);
bool HasHostedUnits(const Plan& plan);

// The device's weights that are in memory while the plan runs.
struct ResidentWeights {
  std::vector<BlockId> whole;   // blocks that are entirely resident, and will not stream
  std::vector<BlockId> pinned;  // the other blocks, whose norms and biases are resident
  std::vector<int> parts;       // resident parts of the blocks in `pinned`; none on demand
};
ResidentWeights ResidentWeightsOn(const Plan& plan, int32_t device);

// The weights that need not be read if the previous plan has them on the same device: a whole
// block, or a part with the same rows. `tied`: embedding and head are one tensor, which is always
// read.
ResidentWeights WeightsThatMayStay(ResidentWeights weights, bool tied);

}  // namespace lime
