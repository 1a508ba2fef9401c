// Which blocks of a model a plan makes a device read.
#pragma once

#include <cstdint>
#include <vector>

#include "planner/plan/model_spec.h"
#include "planner/plan/plan.h"

namespace lime {

// Those of the device's stages, in execution order, and the embedding where it has the first one.
std::vector<BlockId> BlocksOn(const Plan& plan, int32_t device);

// Whether the device computes the head, or some of its parts.
bool HasHead(const Plan& plan, int32_t device);

// Parts of the device's stages, ascending.
std::vector<int> PartsOn(const Plan& plan, int32_t device);

// The device's weights that lie in memory while the plan runs.
struct ResidentWeights {
  std::vector<BlockId> whole;  // blocks that are resident as a whole, none of whose parts may come to stream
  std::vector<BlockId> kept;   // of the others: what is never cut
  std::vector<int> parts;      // resident parts of those
};
ResidentWeights ResidentWeightsOn(const Plan& plan, int32_t device);

// Of those, what is not read where the plan before has it on the same device, too: a block as a whole, or a part with the same rows.
// `tied`: embedding and head are one tensor, which is read every time.
ResidentWeights WeightsThatMayStay(ResidentWeights weights, bool tied);

}  // namespace lime
