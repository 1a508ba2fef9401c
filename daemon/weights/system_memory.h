// How much memory this process could still take. Linux.
#pragma once

#include <cstdint>
#include <istream>
#include <string>
#include <vector>

#include "planner/base/bytes.h"

namespace lime {

// Memory that could be used without swapping: MemAvailable, which counts clean page cache, within the limits of our cgroups.
Bytes AvailableMemory();

// Physical memory, within the limits of our cgroups: what could be used if nobody else were there.
Bytes MachineMemory();

// A cgroup that counts memory.
struct MemoryGroup {
  std::string folder;  // ends with a slash
  bool v2 = false;
};

// The groups that `self` (the text of /proc/self/cgroup) names, each followed by those above it. `root`: where the hierarchies are mounted,
// /sys/fs/cgroup. In a container some may not be there.
std::vector<MemoryGroup> MemoryGroups(std::istream& self, const std::string& root);
// Of this process.
std::vector<MemoryGroup> MemoryGroups();

struct GroupMemory {
  Bytes limit = INT64_MAX;  // from here on tasks are killed, or throttled (memory.high)
  Bytes used = 0;
  Bytes cache = 0;  // of `used`, page cache, most of which could be dropped
};
GroupMemory ReadGroupMemory(const MemoryGroup& group);

// The lowest of what bounds this process: physical memory, or a control group of its own.
struct MemoryLimit {
  Bytes bytes = 0;
  std::string group;  // its folder; empty: the machine
};
MemoryLimit LowestMemoryLimit();
// Of these groups, on a machine of so much memory.
MemoryLimit LowestMemoryLimit(const std::vector<MemoryGroup>& groups, Bytes machine);

// Room left under the limits of MemoryGroups(self, root); `otherwise` where none limits. Page cache that could be dropped counts as room.
Bytes CgroupRoom(std::istream& self, const std::string& root, Bytes otherwise);

}  // namespace lime
