// The small tensors of blocks that stream: norms, biases, learned positions. They stay in memory.
#pragma once

#include "daemon/weights/checkpoint.h"
#include "daemon/weights/weight_store.h"
#include "planner/plan/block_pieces.h"

namespace lime {

// Reads the kept tensors (IsKept) of one block into memory of their own, each on 64 bytes; `data` of all others is null. Compares
// checksums where the checkpoint knows them: kDataLoss then names file and tensor.
absl::StatusOr<LoadedBlock> LoadKept(const Checkpoint& checkpoint, const BlockSpec& block);

// Memory that LoadKept takes for the block.
Bytes KeptMemory(const BlockSpec& block);

}  // namespace lime
