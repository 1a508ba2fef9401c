// A lower bound of the time per step of any plan: the least T for which fractions of blocks can be
// placed. Each device holds at most the bytes that fit in its memory plus the bytes that its disk
// reads in T. All computing plus the unavoidable hops take at most T.
#pragma once

#include "planner/plan/instance/instance.h"

namespace lime {

// Valid for any number of micro-batches. The exact evaluation counts 32 steps that begin with full
// pools; the bound counts this content as memory. 0 if no bound is known.  REQUIRES:
// instance.Validate().ok()
double LowerBoundMs(const Instance& instance);

}  // namespace lime
