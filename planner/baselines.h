// What LIME is compared with (paper, section V-A), as plans: one visit to every device, whole layers.
#pragma once

#include "planner/plan_search.h"

namespace lime {

// Layers by memory capacity; nothing streams. An instance may count KV that is evicted and computed again (PlanRequest::kept_positions).
FoundPlan PlanPipeline(const Instance& instance);

// The same shares; every device streams as many whole layers as it must, through one slot of a layer. With several micro-batches each reads
// them again: see Evaluator::Options. The plan's time is then that of such a device, not that of `eval`.
FoundPlan PlanPipelineOffload(const Instance& instance);

// EdgeShard: the devices, their order and shares that make a token fastest (with several micro-batches: the slowest stage fastest), by
// dynamic programming; nothing streams. Above kMaxOrderedDevices devices their order is that of their speed.
FoundPlan PlanEdgeShard(const Instance& instance);

inline constexpr int kMaxOrderedDevices = 8;

}  // namespace lime
