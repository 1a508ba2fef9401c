// What a checkpoint holds and its model does not use, although the result may depend on it.
#pragma once

#include <string>
#include <vector>

#include "daemon/weights/checkpoint.h"
#include "planner/base/status.h"

namespace lime {

// A sentence for each kind of such tensors, as transformers warns of them: without a word, a model that lacks its biases looks like one
// that is merely bad. Reads some MiB of a head beside a tied embedding to see whether they differ. `spec` is of `checkpoint`.
absl::StatusOr<std::vector<std::string>> DescribeUnused(const Checkpoint& checkpoint, const ModelSpec& spec);

}  // namespace lime
