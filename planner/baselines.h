// What LIME is compared with (paper, section V-A), as plans: one visit to every device, whole layers;
// and the paper's own algorithm.
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

// Algorithm 1 of the paper, minimally corrected: strategy `lime-paper`.
//
// Every device takes the whole layers it holds; S - 1 of S layers that share a slot are what offloading gains; the slots are shared out so
// that the slowest disk is fastest; halves of layers go back to where there is room. Every S, and the best order of the devices (all of up
// to five). The exact evaluation judges. Infeasible where the algorithm finds nothing.
FoundPlan PlanLimePaper(const Instance& instance, SearchBudget& budget);

}  // namespace lime
