// What a disk delivered where it was the disk that took the time.
#pragma once

#include "planner/base/bytes.h"

namespace lime {

struct SteadyReads {
  Bytes bytes = 0;
  double seconds = 0;

  double bytes_per_second() const { return seconds > 0 ? static_cast<double>(bytes) / seconds : 0; }
};

}  // namespace lime
