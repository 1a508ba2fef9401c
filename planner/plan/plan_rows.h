// Rows of a plan's micro-batches. A plan that keeps all KV has the step's own rows only; what a
// comparison computes beside them is in planner/plan/kv_eviction.h.
#pragma once

#include <cstdint>

#include "planner/plan/micro_batch.h"
#include "planner/plan/plan.h"

namespace lime {

// Whether every position keeps its KV until its sequence ends. If not, the plan exists only to be
// compared with: it takes over no KV, and nothing of it changes while it runs.
inline bool KeepsAllKv(const Plan& plan) {
  return plan.kept_positions == 0;
}

// Of the largest micro-batch: the step's own rows, the rows sent between stages, and the rows
// computed at a time.
int64_t OwnRows(const Plan& plan);
int64_t VisitRows(const Plan& plan);
int64_t MaxRows(const Plan& plan);

// The rows of this micro-batch that are sent between stages.  REQUIRES: rows of a sequence are
// consecutive
int64_t NumVisitRows(const Plan& plan, const MicroBatch& batch);

}  // namespace lime
