// How much memory this process could still take. Linux.
#pragma once

#include <istream>
#include <string>

#include "planner/base/bytes.h"

namespace lime {

// Memory that could be used without swapping: MemAvailable, which counts clean page cache, within the limits of our cgroups.
Bytes AvailableMemory();

// Room left under the memory limits of the groups that `self` (the text of /proc/self/cgroup) names and of those above them, cgroup v1 and
// v2; `otherwise` where none limits. Page cache that could be dropped counts as room. `root`: where the hierarchies are mounted,
// /sys/fs/cgroup.
Bytes CgroupRoom(std::istream& self, const std::string& root, Bytes otherwise);

}  // namespace lime
