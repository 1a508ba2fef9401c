// A daemon that looks at its own machine: memory, disks, keys; or in tests something that knows the answer.
#pragma once

#include <functional>
#include <vector>

#include "planner/base/finding.h"
#include "proto/finding_convert.h"

namespace lime {

// Takes little more than call.seconds; on a thread of its own, one at a time, whether or not a plan is in use.
using Inspector = std::function<std::vector<Finding>(const InspectCall& call)>;

}  // namespace lime
