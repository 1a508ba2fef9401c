// Evicted KV: KV that does not fit and is computed again, not streamed or lent. The baselines of
// the LIME paper do this when memory is full (section V-A).
//
// A plan with Plan::retained_positions keeps the KV of that many newest positions per sequence.
// Every step sends the tokens of older positions through all layers again, before its own rows, and
// attends to the resulting K and V together with the kept KV.
//
//   positions of a sequence   0 ....... evicted | .......... kept ........... | the step's own rows
//   pages                     shared by all layers in turn    per layer: a ring
//
// The same rows give the same K and V in any batch, so results do not change by a bit.
//
// The planned decode step is the one at the end of the context. A prompt chunk computes the mean
// number of evicted positions again. These chunks run one after another, so a prompt takes longer
// than predicted. A chunk must be at least a page shorter than retained_positions, with at most
// kEvictedRows tokens.
//
// eviction.cc also implements planner/plan/plan_rows.h, whose functions work for every plan.
#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "planner/plan/micro_batch.h"
#include "planner/plan/plan.h"
#include "planner/plan/plan_rows.h"

namespace lime {

inline bool EvictsKv(const Plan& plan) {
  return !RetainsAllKv(plan);
}

// Evicted positions of a sequence that has `positions` positions after the step. They begin with
// the first, are a multiple of 16, and include none of the step's own.
int64_t EvictedPositions(const Plan& plan, int64_t positions);
// The same at the end of the context.
int64_t MostEvicted(const Plan& plan);
// The mean number of evicted positions before the chunks of the planned prompt.
int64_t MeanEvicted(const Plan& plan, int64_t chunk_rows);

// Pages per sequence that a device's layers share in turn.
int64_t SharedPages(const Plan& plan);

// The micro-batch that goes from stage to stage: each sequence's evicted positions come before its
// own rows. `known(sequence)` gives their tokens by position; a missing token is 0.  REQUIRES: rows
// of a sequence are consecutive
MicroBatch WithEvicted(const Plan& plan, const MicroBatch& batch, const std::function<std::span<const int32_t>(int32_t sequence)>& known);

// Limit for the positions computed again in one step, over all sequences.
inline constexpr int64_t kMostComputedAgain = int64_t{1} << 20;

// A plan that evicts KV computes its visits at least this many rows at a time.
inline constexpr int64_t kEvictedRows = 128;

// A micro-batch: `own` new rows per sequence after `evicted` rows that are computed again. Each
// sequence has `context` positions then.
struct VisitShape {
  int64_t sequences = 1;
  int64_t own = 1;
  int64_t logits = 1;
  int64_t context = 0;
  int64_t evicted = 0;
};
// Time to compute all rows of the visit in slices (daemon/engine/baselines/sliced_visit.h). `ms`:
// the time of `rows` rows that attend to up to `positions` positions. Each slice attends up to its
// last row.
double SlicedMs(const VisitShape& visit, const std::function<double(int64_t rows, int64_t positions)>& ms);

// The same plan with the times of a step in which `evicted` positions of every sequence are
// evicted. The time is proportional to the positions.
Plan WithEvictedPositions(const Plan& plan, double evicted);

}  // namespace lime
