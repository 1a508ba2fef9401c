// KV that a pipeline has no room for and neither streams nor lends: what the paper's baselines do where their memory is used up (LIME,
// section V-A of the paper).
//
// A plan with Plan::kept_positions keeps the KV of so many positions of each sequence, the newest ones. What is older is evicted: every
// step sends its tokens through all layers once more, ahead of its own rows, and attends to what that makes of K and V beside what is kept.
//
//   positions of a sequence   0 ....... evicted | .......... kept ........... | the step's own rows
//   pages of each layer       of all layers in turn     its own: a ring
//
// The same rows make the same K and V, whatever they are computed with, so no bit depends on it.
#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "planner/base/status.h"
#include "planner/plan/micro_batch.h"
#include "planner/plan/plan.h"

namespace lime {

inline bool EvictsKv(const Plan& plan) {
  return plan.kept_positions > 0;
}

// Positions of a sequence that are evicted in a step after which it has `positions`: from the first on, a multiple of 16, none of them the
// step's own.
int64_t EvictedPositions(const Plan& plan, int64_t positions);
// Of a sequence at the end of the context.
int64_t MostEvicted(const Plan& plan);

// Of each sequence: pages of every layer, and pages that the layers of a device use in turn.
int64_t KeptPages(const Plan& plan);
int64_t SharedPages(const Plan& plan);

// Rows that a micro-batch has where it goes from stage to stage: ahead of a sequence's own those of its evicted positions. Their tokens are
// those that `known` has of the sequence, by position, 0 behind them.  REQUIRES: rows of a sequence follow one another
int64_t NumVisitRows(const Plan& plan, const MicroBatch& batch);
MicroBatch WithEvicted(const Plan& plan, const MicroBatch& batch, const std::function<std::span<const int32_t>(int32_t sequence)>& known);

// Rows of the largest micro-batch that a plan flows: of the step's own, of all that go from stage to stage, and of those that are computed
// at a time.
int64_t OwnRows(const Plan& plan);
int64_t VisitRows(const Plan& plan);
int64_t MaxRows(const Plan& plan);

// Positions that are computed again in a step, of all sequences, at most.
inline constexpr int64_t kMostComputedAgain = int64_t{1} << 20;

// The rows of an evicting plan's visits are computed so many at a time at least.
inline constexpr int64_t kEvictedRows = 128;

// The same plan with the times of a decode step in which so many positions of every sequence are evicted: each counts the same.
Plan WithEvictedPositions(const Plan& plan, double evicted);

// What Validate() asks of an evicting plan. InvalidArgument.
absl::Status CheckEviction(const Plan& plan);

}  // namespace lime
