// Rows of a plan's micro-batches. A plan that keeps all KV has the step's own rows only; what a
// comparison computes beside them is in planner/plan/kv_eviction.h.
#pragma once

#include <algorithm>
#include <cstdint>

#include "planner/plan/micro_batch.h"
#include "planner/plan/plan.h"

namespace lime {

// Whether every position keeps its KV until its sequence ends. If not, the plan takes over no KV.
inline bool RetainsAllKv(const Plan& plan) {
  return plan.retained_positions == 0;
}

// Whether nothing of the plan may change while it runs: it does not keep all KV, or every
// micro-batch reads again what streams. Only plans to compare with are like that.
inline bool IsFixed(const Plan& plan) {
  return !RetainsAllKv(plan) || plan.reads != ReadsPerStep::kOnce;
}

// Micro-batches of the longest step: one that decodes, or one with chunks of a prompt.
inline int32_t MostMicrobatches(const Plan& plan) {
  return plan.reads == ReadsPerStep::kOnce ? std::max(plan.microbatches, plan.chunks_per_sweep) : plan.microbatches;
}

// Rows of the largest micro-batch: the step's own rows, the rows sent between stages, and the rows
// computed at a time.
int64_t OwnRows(const Plan& plan);
int64_t VisitRows(const Plan& plan);
int64_t MaxRows(const Plan& plan);

// The rows of this micro-batch that are sent between stages.  REQUIRES: rows of a sequence are
// consecutive
int64_t NumVisitRows(const Plan& plan, const MicroBatch& batch);

// Rows that may wait between devices in addition to own rows. 0 if all KV is kept.
int64_t RowsAgainWaiting(const Plan& plan);

}  // namespace lime
