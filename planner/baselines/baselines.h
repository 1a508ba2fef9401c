// Plans for the comparison with LIME (paper, section V-A): one visit per device, whole layers; and
// the paper's own algorithm.
#pragma once

#include "planner/search/plan_search.h"

namespace lime {

// Layers in proportion to memory; nothing streams. The instance may include the time to compute
// evicted KV again (PlanRequest::retained_positions).
FoundPlan PlanPipeline(const Instance& instance);

// The same shares. Each device streams as many whole layers as it must, through memory for one
// layer. Every micro-batch reads them again (Plan::reads_once), so the time differs from that of
// `lime solve` kind `eval`.
FoundPlan PlanPipelineOffload(const Instance& instance);

// EdgeShard: the devices, order and shares with the fastest token (with several micro-batches: with
// the fastest bottleneck stage), by dynamic programming. Nothing streams. More than
// kMaxOrderedDevices devices are ordered by speed.
FoundPlan PlanEdgeShard(const Instance& instance);

inline constexpr int kMaxOrderedDevices = 8;

// Algorithm 1 of the paper, minimally corrected: strategy `lime-paper`.
//
// Every device gets the whole layers that fit. Of S layers that share a slot, offloading gains S -
// 1. The slots are divided so that the slowest disk is as fast as possible. Half layers return to
// memory where they fit. Tries every S and the best device order (all orders of up to five
// devices); the exact evaluation decides. Infeasible if the algorithm finds nothing.
FoundPlan PlanLimePaper(const Instance& instance, SearchBudget& budget);

}  // namespace lime
