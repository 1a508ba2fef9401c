// Says how much memory this process can still take. Linux.
#pragma once

#include <cstdint>
#include <istream>
#include <string>
#include <vector>

#include "planner/base/bytes.h"

namespace lime {

// Memory that can be used without swapping: MemAvailable, which counts clean page cache, within the
// limits of this process's cgroups.
Bytes AvailableMemory();

// Physical memory, within the limits of this process's cgroups: the memory that it could use if no
// other program ran.
Bytes MachineMemory();

// A cgroup that counts memory.
struct MemoryGroup {
  std::string folder;  // ends with a slash
  bool v2 = false;
};

// The groups that `self` (the text of /proc/self/cgroup) names, each followed by its parents.
// `root` is the folder where the hierarchies are mounted, /sys/fs/cgroup. In a container some may
// be missing.
std::vector<MemoryGroup> MemoryGroups(std::istream& self, const std::string& root);
// The groups of this process.
std::vector<MemoryGroup> MemoryGroups();

struct GroupMemory {
  // Above this, the kernel kills tasks, or throttles them (memory.high).
  Bytes limit = INT64_MAX;
  Bytes used = 0;
  Bytes cache = 0;  // part of `used` that is page cache; most of it can be dropped
};
GroupMemory ReadGroupMemory(const MemoryGroup& group);

// The lowest bound on this process's memory: physical memory, or the limit of one of its groups.
struct MemoryLimit {
  Bytes bytes = 0;
  std::string group;  // its folder; empty: physical memory is the bound
};
MemoryLimit LowestMemoryLimit();
// The same for `groups`, on a machine with `machine` bytes of memory.
MemoryLimit LowestMemoryLimit(const std::vector<MemoryGroup>& groups, Bytes machine);

// Memory left under the limits of MemoryGroups(self, root), or `otherwise` if there is no limit.
// Page cache that can be dropped counts as free.
Bytes CgroupRoom(std::istream& self, const std::string& root, Bytes otherwise);

}  // namespace lime
