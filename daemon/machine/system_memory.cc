#include "daemon/machine/system_memory.h"

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <optional>
#include <sstream>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "planner/base/strings.h"

namespace lime {
namespace {

constexpr char kRoot[] = "/sys/fs/cgroup";
constexpr char kSelf[] = "/proc/self/cgroup";
// cgroup v1 reports "no limit" as a number near 2^63.
constexpr Bytes kUnlimited = Bytes{1} << 62;

// The number in a file. `otherwise` if the file says "max" (cgroup v2) or does not exist.
Bytes ReadNumber(const std::string& path, Bytes otherwise) {
  std::ifstream in(path);
  Bytes value = 0;
  return in >> value ? value : otherwise;
}

// The mount point and version of the hierarchy in a line "id:controllers:path". None if it does not
// count memory.
std::optional<MemoryGroup> Hierarchy(std::string_view controllers, const std::string& root) {
  if (absl::StrCat(",", Text(controllers), ",").find(",memory,") != std::string::npos) return MemoryGroup{root + "/memory", false};
  if (!controllers.empty()) return std::nullopt;
  std::error_code ignored;
  // Both versions are mounted side by side.
  const bool hybrid = std::filesystem::is_directory(root + "/unified", ignored);
  return MemoryGroup{hybrid ? root + "/unified" : root, true};
}

Bytes PhysicalMemory() {
  return static_cast<Bytes>(::sysconf(_SC_PHYS_PAGES)) * ::sysconf(_SC_PAGESIZE);
}

}  // namespace

std::vector<MemoryGroup> MemoryGroups(std::istream& self, const std::string& root) {
  std::vector<MemoryGroup> groups;
  for (std::string line; std::getline(self, line);) {
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const auto hierarchy = Hierarchy(std::string_view(line).substr(first + 1, second - first - 1), root);
    if (!hierarchy) continue;
    std::string group = line.substr(second + 1);
    if (group == "/") group.clear();
    for (;; group = group.substr(0, group.rfind('/'))) {
      groups.push_back({hierarchy->folder + group + "/", hierarchy->v2});
      if (group.find('/') == std::string::npos) break;
    }
  }
  return groups;
}

std::vector<MemoryGroup> MemoryGroups() {
  std::ifstream self(kSelf);
  return MemoryGroups(self, kRoot);
}

GroupMemory ReadGroupMemory(const MemoryGroup& group) {
  GroupMemory memory;
  const std::string prefix = group.folder + "memory.";
  memory.limit = ReadNumber(prefix + (group.v2 ? "max" : "limit_in_bytes"), memory.limit);
  if (group.v2) memory.limit = std::min(memory.limit, ReadNumber(prefix + "high", memory.limit));
  if (memory.limit >= kUnlimited) return GroupMemory();
  memory.used = ReadNumber(prefix + (group.v2 ? "current" : "usage_in_bytes"), 0);
  std::ifstream stat(prefix + "stat");
  const std::string inactive = group.v2 ? "inactive_file" : "total_inactive_file", active = group.v2 ? "active_file" : "total_active_file";
  std::string key;
  for (Bytes value = 0; stat >> key >> value;) {
    if (key == inactive || key == active) memory.cache += value;
  }
  return memory;
}

Bytes CgroupRoom(std::istream& self, const std::string& root, Bytes otherwise) {
  Bytes room = otherwise;
  for (const MemoryGroup& group : MemoryGroups(self, root)) {
    const GroupMemory memory = ReadGroupMemory(group);
    if (memory.limit != INT64_MAX) room = std::clamp<Bytes>(memory.limit - memory.used + memory.cache, 0, room);
  }
  return room;
}

Bytes AvailableMemory() {
  std::ifstream in("/proc/meminfo");
  std::string key;
  Bytes available = PhysicalMemory();
  for (std::string line; std::getline(in, line);) {
    std::istringstream fields(line);
    Bytes kib = 0;
    if (fields >> key >> kib && key == "MemAvailable:") available = kib * kKiB;
  }
  std::ifstream self(kSelf);
  return CgroupRoom(self, kRoot, available);
}

Bytes MachineMemory() {
  return LowestMemoryLimit().bytes;
}

MemoryLimit LowestMemoryLimit() {
  return LowestMemoryLimit(MemoryGroups(), PhysicalMemory());
}

MemoryLimit LowestMemoryLimit(const std::vector<MemoryGroup>& groups, Bytes machine) {
  MemoryLimit lowest{.bytes = machine};
  for (const MemoryGroup& group : groups) {
    if (const Bytes limit = ReadGroupMemory(group).limit; limit < lowest.bytes) lowest = {.bytes = limit, .group = group.folder};
  }
  return lowest;
}

}  // namespace lime
