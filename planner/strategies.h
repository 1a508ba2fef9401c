// The ways to make a plan, by name.
#pragma once

#include "planner/base/names.h"
#include "planner/search/plan_search.h"

namespace lime {

enum class Strategy {
  kLime,              // the whole plan space; never worse than the others
  kLimePaper,         // Algorithm 1 of the paper, minimally corrected
  kPp,                // a plain pipeline, layers in proportion to memory
  kPpOffload,         // the same, but streams layers that do not fit, again for every micro-batch
  kPpOffloadBatched,  // the same, with all sequences in one micro-batch
  kEdgeShard,         // the fastest plain pipeline
};

inline constexpr Names<Strategy, 6> kStrategyNames = {{{Strategy::kLime, "lime"},
                                                       {Strategy::kLimePaper, "lime-paper"},
                                                       {Strategy::kPp, "pp"},
                                                       {Strategy::kPpOffload, "pp-offload"},
                                                       {Strategy::kPpOffloadBatched, "pp-offload-batched"},
                                                       {Strategy::kEdgeShard, "edgeshard"}}};

// Whether the strategy keeps less KV, and computes the rest again, if memory has no room for all
// KV.
constexpr bool RetainsLessKv(Strategy strategy) {
  return strategy == Strategy::kPp || strategy == Strategy::kEdgeShard;
}

// Uses the micro-batches and batch size of the instance; batches.h chooses them.  REQUIRES:
// instance.Validate().ok()
FoundPlan PlanBy(Strategy strategy, const Instance& instance, const SearchOptions& options);

}  // namespace lime
