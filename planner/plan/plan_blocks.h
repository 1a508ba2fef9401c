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

}  // namespace lime
