// What a disk delivered while nothing but the disk held it up.
#pragma once

#include "planner/base/bytes.h"

namespace lime {

struct SteadyReads {
  Bytes bytes = 0;
  double seconds = 0;

  double bytes_per_second() const { return seconds > 0 ? static_cast<double>(bytes) / seconds : 0; }
};

}  // namespace lime
