// What a stage takes of its device's memory, and whether that is what its plan allows.
#pragma once

#include "planner/base/bytes.h"
#include "planner/base/status.h"
#include "planner/plan/model_spec.h"
#include "planner/plan/plan.h"

namespace lime {

struct StageMemory {
  Bytes runtime = 0;      // the process, but for what the plan before has left
  Bytes activations = 0;  // the backend's, rows of an embedding, and messages
  Bytes kv = 0;           // pages
  Bytes others = 0;       // KV of other devices' layers, and what comes back from a host
  Bytes weights = 0;      // and the ring

  Bytes total() const { return runtime + activations + kv + others + weights; }
};

// Of messages that wait, are read or are on their way: from peers, about KV, pieces of KV; and of visits that evicted positions go ahead
// of.
Bytes MessageBytes(const Plan& plan, int32_t device, const ModelSpec& spec);

// ResourceExhausted, with the numbers and what to do about it, where it exceeds the device's budget.
absl::Status CheckFits(const PlanDevice& device, const StageMemory& memory);
// Likewise of all that is there while KV is taken over from the plan before.
absl::Status CheckBothFit(const PlanDevice& device, Bytes both);

}  // namespace lime
