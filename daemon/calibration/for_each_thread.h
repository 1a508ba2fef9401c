// Threads for work in pieces (planner/base/for_each.h), such as the statistics of masks.
#pragma once

#include "planner/base/for_each.h"

namespace lime {

// Shares pieces over so many threads, the calling one included. Threads wait without work between two
// calls, and end with the last copy of the result.  Thread: one call at a time
ForEach ForEachOnThreads(int num_threads);

}  // namespace lime
