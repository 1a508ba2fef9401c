// The blocks that a device reads for a plan.
#pragma once

#include <cstdint>
#include <vector>

#include "planner/plan/model/model_spec.h"
#include "planner/plan/plan.h"

namespace lime {

// Blocks of the device's stages in execution order, and the embedding if it has the first stage.
std::vector<BlockId> BlocksOn(const Plan& plan, int32_t device);

// Whether the device computes the head or parts of it.
bool HasHead(const Plan& plan, int32_t device);

// Parts of the device's stages, ascending.
std::vector<int> PartsOn(const Plan& plan, int32_t device);

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
