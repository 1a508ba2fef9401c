// A time per step that no plan can beat: the least T for which the blocks can be placed in fractions, so that every device holds at most
// what its memory has room for and its disk reads in T, and all computing plus the hops that cannot be avoided take at most T.
#pragma once

#include "planner/plan/instance.h"

namespace lime {

// For any number of micro-batches, by the exact evaluation (whose 32 steps begin with full pools: they, too, are room in memory).
// 0 where nothing is known.  REQUIRES: instance.Validate().ok()
double LowerBoundMs(const Instance& instance);

}  // namespace lime
