// How a stage was set up: what computes, and how its weights came into memory.
#pragma once

#include <string>

#include "daemon/weights/steady_reads.h"
#include "planner/base/bytes.h"

namespace lime {

struct LoadSummary {
  std::string backend;  // for people
  std::string loader;   // which one, and why; likewise
  Bytes bytes = 0;      // that were not in memory before
  double seconds = 0;
  SteadyReads steady;  // what the disk delivered meanwhile, where it was the disk that took the time
};

}  // namespace lime
