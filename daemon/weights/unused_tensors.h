// Finds tensors of a checkpoint that its model does not use, although the result may depend on
// them.
#pragma once

#include <string>
#include <vector>

#include "daemon/weights/checkpoint.h"
#include "planner/base/status.h"

namespace lime {

// Returns a sentence for each kind of such tensors, similar to the warnings of transformers.
// Without a warning, a model that lacks its biases looks like a poor model. If the embedding is
// tied and the checkpoint has a head too, it reads some MiB of both to see whether they differ.
// `spec` was built from `checkpoint`.
absl::StatusOr<std::vector<std::string>> DescribeUnused(const Checkpoint& checkpoint, const ModelSpec& spec);

}  // namespace lime
