// How weights came into memory; for people.
#pragma once

#include <string>

#include "planner/base/bytes.h"

namespace lime {

struct LoadSummary {
  std::string loader;  // which one, and why
  Bytes bytes = 0;     // that were not in memory before
  double seconds = 0;
};

}  // namespace lime
