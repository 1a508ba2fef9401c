// Which model a folder holds, whatever its name and however its tensors are spread over files.
#pragma once

#include <cstdint>

#include "daemon/weights/checkpoint.h"
#include "planner/base/status.h"

namespace lime {

// Over config.json, name, dtype and shape of all tensors, and 16 places of each, from its first bytes to its last, since fine-tunings share
// all the rest. Never 0.
absl::StatusOr<uint64_t> DigestTensors(const Checkpoint& checkpoint);

// The same of the model that a block store was made from, as its manifest says; of another folder, DigestTensors.
absl::StatusOr<uint64_t> ModelDigest(const Checkpoint& checkpoint);

}  // namespace lime
