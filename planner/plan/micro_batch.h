// The work of one visit: rows of tokens that travel through the pipeline together. Prefill chunks
// and decode tokens use the same path.
#pragma once

#include <cstdint>
#include <vector>

namespace lime {

struct BatchRow {
  int32_t sequence = 0;  // slot of the sequence on the device
  int32_t token = 0;     // id to embed
  int32_t position = 0;  // in its sequence, from 0
  // The row of this batch with the token before this one; -1: that token is in the sequence's
  // cache. For trees of speculated tokens.
  int32_t parent = -1;
  bool wants_logits = false;
  // After this row, each layer with a state copies the state of the sequence to this snapshot of the
  // slot (Plan::state_snapshots), and each layer that gives pages back the pages that the next row
  // sees. -1: to none.
  int32_t snapshot = -1;
  // Positions that its sequence will have, generated ones included, as its admission says; 0: not
  // known. Some rotations differ between short and long sequences (RopeConfig::TableRow).
  int64_t length = 0;

  friend bool operator==(const BatchRow&, const BatchRow&) = default;
};

struct MicroBatch {
  std::vector<BatchRow> rows;  // rows of one sequence are consecutive, positions ascending

  void Clear() { rows.clear(); }
  friend bool operator==(const MicroBatch&, const MicroBatch&) = default;
};

}  // namespace lime
