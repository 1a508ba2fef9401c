// Rows of a plan's micro-batches, and their KV. A plan that keeps all KV has the step's own rows
// only. Plans to compare with may keep less and compute rows again; eviction.h in the folder for
// baselines says how.
#pragma once

#include <algorithm>
#include <cstdint>

#include "planner/base/status.h"
#include "planner/plan/micro_batch.h"
#include "planner/plan/plan.h"

namespace lime {

// Whether every position keeps its KV until its sequence ends. If not, the plan takes over no KV.
inline bool RetainsAllKv(const Plan& plan) {
  return plan.retained_positions == 0;
}

// Whether the model keeps a state of fixed size for each sequence. A state cannot be cut to fewer
// positions: sequences share it only where a snapshot was taken.
inline bool HasState(const Plan& plan) {
  return std::ranges::any_of(plan.parts, [](const PlanPart& part) { return HasState(part.block.kind); });
}

// Whether the plan must stay the same while it runs, because it does not keep all KV, or because
// every micro-batch reads the streamed parts again. Only plans to compare with are like that.
inline bool IsFixed(const Plan& plan) {
  return !RetainsAllKv(plan) || !plan.reads_once;
}

// Micro-batches of the longest step: one that decodes, or one with chunks of a prompt.
inline int32_t MostMicrobatches(const Plan& plan) {
  return plan.reads_once ? std::max(plan.microbatches, plan.chunks_per_sweep) : plan.microbatches;
}

// Rows of the largest micro-batch. OwnRows: the step's own rows. SentRows: the rows sent between
// stages. MaxRows: the rows computed at a time.
int64_t OwnRows(const Plan& plan);
int64_t SentRows(const Plan& plan);
int64_t MaxRows(const Plan& plan);

// The rows of this micro-batch that are sent between stages.  REQUIRES: rows of a sequence are
// consecutive
int64_t NumSentRows(const Plan& plan, const MicroBatch& batch);

// Rows computed again that may wait between devices, in addition to own rows. 0 if all KV is kept.
int64_t RowsAgainWaiting(const Plan& plan);

// Limit for steps that compute rows again and that are ordered but not ended. Such steps are long,
// so two are enough to keep micro-batches following each other.
inline int32_t AgainAhead(const Plan& plan) {
  return plan.microbatches > 1 ? 2 : 1;
}

// RetainedPages: pages of a layer for each sequence. PagesInTurn: pages for all sequences that a
// device's layers use in turn; 0 if all KV is kept.
int64_t RetainedPages(const Plan& plan);
int64_t PagesInTurn(const Plan& plan);

// Checks of Validate() for a plan that does not keep all KV. Returns InvalidArgument.
absl::Status CheckRetainedKv(const Plan& plan);

}  // namespace lime
