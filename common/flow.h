// Says how far the devices of a plan may be ahead of each other, and how much data waits between
// them.
//
// The coordinator sends orders ahead so that no device waits for them. A device may then be ahead
// of its neighbour by all steps that are ordered. Its messages wait at the sender or the receiver.
// Every device budgets for all data that may wait anywhere, because each micro-batch is in one
// place at a time.
#pragma once

#include <algorithm>
#include <cstdint>

#include "planner/plan/plan.h"
#include "planner/plan/plan_rows.h"

namespace lime {

struct Flow {
  int64_t devices = 1;
  int64_t sequences = 1;
  int64_t microbatches = 1;      // of a decode step
  int64_t chunk = 1;             // rows of a prompt per micro-batch
  int64_t chunks_per_sweep = 1;  // chunks in one step
  int64_t batch = 1;             // rows of a micro-batch that may ask for logits
  int64_t rows_again = 0;        // RowsAgainWaiting

  // Limit for decode steps that are ordered but not ended.
  static constexpr int64_t kDecodeAhead = 3;

  static Flow Of(const Plan& plan) {
    return {.devices = plan.NumDevices(),
            .sequences = plan.sequences,
            .microbatches = plan.microbatches,
            .chunk = OwnRows(plan),
            .chunks_per_sweep = std::max(1, plan.chunks_per_sweep),
            .batch = plan.batch,
            .rows_again = RowsAgainWaiting(plan)};
  }

  // Limit for prompt steps that are ordered but not ended: enough that every device computes. A
  // step of many chunks keeps the devices busy by itself except at its ends.
  int64_t PromptsAhead() const { return chunks_per_sweep > 1 ? 2 : devices + 1; }

  // The largest number of rows in all current steps, without rows that are computed again. A decode
  // step may also have one chunk. A mix of both kinds of steps does not have more rows.
  int64_t RowsAhead() const { return std::max(kDecodeAhead * (sequences + chunk), PromptsAhead() * chunk * chunks_per_sweep); }
  // Rows of hidden states that may wait.
  int64_t WaitingRows() const { return RowsAhead() + rows_again; }

  // Rows with logits that may wait between parts of the head. A decoding sequence has one, because
  // it waits for its token. In a scored prompt every row has logits, but in one step at most the
  // rows of a micro-batch wait.
  int64_t WaitingLogitRows() const { return sequences + std::max(kDecodeAhead, PromptsAhead()) * batch; }
};

}  // namespace lime
