// Runs independent parts of work on files on all cores. Not for computing tokens.
#pragma once

#include <cstdint>
#include <functional>

#include "planner/base/status.h"

namespace lime {

// Runs work(0) to work(count - 1), each once, on the calling thread and others. Returns the first
// error; after an error no new part begins.
absl::Status ParallelFor(int64_t count, const std::function<absl::Status(int64_t)>& work);

}  // namespace lime
