// Which device runs which blocks, in which order, and which blocks stream from its disk: the planner's answer.
#pragma once

#include <cstdint>
#include <vector>

#include "planner/base/status.h"
#include "planner/plan/instance.h"

namespace lime {

// Consecutive blocks [lo, hi) on one device.
struct Stage {
  int32_t device = 0;
  int32_t lo = 0;
  int32_t hi = 0;

  friend bool operator==(const Stage&, const Stage&) = default;
};

struct StagePlan {
  std::vector<Stage> stages;       // cover all blocks in order; neighbours on different devices; a device may appear again, or never
  std::vector<int32_t> streamed;   // blocks read from disk in every step, ascending; all others are resident
  bool embedding_by_rows = false;  // the first stage's device reads the rows it needs from disk; else it holds the embedding

  // Names the first thing wrong: a gap, an overlap, a device or block that is not there, neighbours on one device, a block listed twice,
  // an embedding read by rows on a device of which that is not known.
  // Memory is not its business (Evaluator).  REQUIRES: instance.Validate().ok()
  absl::Status Validate(const Instance& instance) const;

  friend bool operator==(const StagePlan&, const StagePlan&) = default;
};

}  // namespace lime
