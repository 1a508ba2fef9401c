// How far the devices of a plan may be ahead of each other, and what waits between them for that.
//
// Orders are given ahead so that no device waits for the coordinator; each may then be ahead of its neighbour by as many steps. What it has
// handed over meanwhile waits at the sender or at the receiver. Every device counts in its budget all that can wait anywhere: a micro-batch
// is at one place at a time.
#pragma once

#include <algorithm>
#include <cstdint>

#include "planner/plan/kv_eviction.h"
#include "planner/plan/plan.h"

namespace lime {

struct Flow {
  int64_t devices = 1;
  int64_t sequences = 1;
  int64_t microbatches = 1;      // of a decode step
  int64_t chunk = 1;             // rows of a prompt that flow together
  int64_t chunks_per_sweep = 1;  // of them in one step
  int64_t batch = 1;             // rows of one micro-batch that may ask for logits
  int64_t evicted = 0;           // positions of a sequence that go ahead of its rows (planner/plan/kv_eviction.h)

  static constexpr int64_t kDecodeAhead = 3;  // steps that decode, ordered and not ended

  static Flow Of(const Plan& plan) {
    return {.devices = plan.NumDevices(),
            .sequences = plan.sequences,
            .microbatches = plan.microbatches,
            .chunk = OwnRows(plan),
            .chunks_per_sweep = std::max(1, plan.chunks_per_sweep),
            .batch = plan.batch,
            .evicted = MostEvicted(plan)};
  }

  // Steps of prompts alone, ordered and not ended: one for every device, so that all of them compute. A step of many chunks keeps them busy
  // by itself, but for its ends.
  int64_t PromptsAhead() const { return chunks_per_sweep > 1 ? 2 : devices + 1; }

  // Steps ahead of which rows of evicted positions go, ordered and not ended. They are long; two let micro-batches follow one another.
  int64_t EvictingAhead() const { return microbatches > 1 ? 2 : 1; }

  // Rows of all steps under way, but for evicted ones: beside decode rows flows one chunk. Steps of both kinds together have no more.
  int64_t RowsAhead() const { return std::max(kDecodeAhead * (sequences + chunk), PromptsAhead() * chunk * chunks_per_sweep); }
  // Of hidden states.
  int64_t WaitingRows() const { return RowsAhead() + EvictingAhead() * sequences * evicted; }

  // Of them, those between two parts of the head that ask for logits. A sequence that decodes waits for its token, so it has one; of
  // prompts that are scored every row asks, but of one step no more than of a micro-batch.
  int64_t WaitingLogitRows() const { return sequences + std::max(kDecodeAhead, PromptsAhead()) * batch; }
};

}  // namespace lime
