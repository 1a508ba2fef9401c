// The planner's result: which device runs which blocks in which order, and which blocks stream.
#pragma once

#include <cstdint>
#include <vector>

#include "planner/base/status.h"
#include "planner/plan/instance/instance.h"

namespace lime {

// Consecutive blocks [lo, hi) on one device.
struct Stage {
  int32_t device = 0;
  int32_t lo = 0;
  int32_t hi = 0;

  friend bool operator==(const Stage&, const Stage&) = default;
};

struct StagePlan {
  // Cover all blocks in order. Neighbours are on different devices. A device may appear several
  // times, or never.
  std::vector<Stage> stages;
  std::vector<int32_t> streamed;  // blocks, ascending; the others are resident
  // The first stage's device reads embedding rows from disk. If false, it holds the embedding.
  bool embedding_by_rows = false;

  // Checks for gaps, overlaps, unknown devices or blocks, neighbours on one device, blocks listed
  // twice, and an embedding by rows on a device without embed_rows_ms. The error names the first
  // problem. Evaluator checks memory.  REQUIRES: instance.Validate().ok()
  absl::Status Validate(const Instance& instance) const;

  friend bool operator==(const StagePlan&, const StagePlan&) = default;
};

}  // namespace lime
