// A daemon that looks at its own machine: memory, disks, keys; or in tests something that knows the answer.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "planner/base/finding.h"

namespace lime {

struct InspectCall {
  std::string weights;  // folder on this device; empty: the one that it was started with
  double seconds = 0;   // that measuring its disk may take; 0: it is not measured
};

// Takes little more than call.seconds; on a thread of its own, one at a time, whether or not a plan is in use.
using Inspector = std::function<std::vector<Finding>(const InspectCall& call)>;

}  // namespace lime
