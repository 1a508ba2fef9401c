#include "daemon/engine/process_memory.h"

#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <optional>
#include <sstream>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace lime {
namespace {

// The first number behind `key` in a file of "key: number" lines.
std::optional<int64_t> FieldOf(const std::string& path, const std::string& key) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (line.compare(0, key.size(), key) != 0) continue;
    std::istringstream rest(line.substr(key.size()));
    int64_t value = 0;
    if (rest >> value) return value;
  }
  return std::nullopt;
}

// The number in a one-line file; "max" and unreadable files are none.
std::optional<int64_t> NumberIn(const std::string& path) {
  std::ifstream file(path);
  std::string text;
  int64_t value = 0;
  if (file >> text && absl::SimpleAtoi(text, &value)) return value;
  return std::nullopt;
}

// What a cgroup leaves: its limit less its use, page cache that can be dropped not counted as use.
std::optional<int64_t> RoomInGroup(const std::string& limit_file, const std::string& usage_file, const std::string& stat_file,
                                   const std::string& cache_key) {
  const std::optional<int64_t> limit = NumberIn(limit_file), usage = NumberIn(usage_file);
  if (!limit || !usage || *limit > (int64_t{1} << 60)) return std::nullopt;
  return std::max<int64_t>(0, *limit - *usage + FieldOf(stat_file, cache_key).value_or(0));
}

// Room in the memory cgroup of this process and in every one above it.
int64_t RoomInGroups() {
  int64_t room = std::numeric_limits<int64_t>::max();
  std::ifstream groups("/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const bool v2 = controllers.empty();
    if (!v2 && absl::StrCat(",", controllers, ",").find(",memory,") == std::string::npos) continue;
    for (std::string path = line.substr(second + 1);; path = path.substr(0, path.rfind('/'))) {
      const std::string dir = absl::StrCat(v2 ? "/sys/fs/cgroup" : "/sys/fs/cgroup/memory", path == "/" ? "" : path, "/");
      const auto here =
          v2 ? RoomInGroup(dir + "memory.max", dir + "memory.current", dir + "memory.stat", "inactive_file ")
             : RoomInGroup(dir + "memory.limit_in_bytes", dir + "memory.usage_in_bytes", dir + "memory.stat", "total_inactive_file ");
      if (here) room = std::min(room, *here);
      if (path.empty() || path == "/") break;
    }
  }
  return room;
}

}  // namespace

Bytes ProcessResidentBytes() {
  return FieldOf("/proc/self/status", "VmRSS:").value_or(0) * kKiB;
}

Bytes ProcessPeakResidentBytes() {
  struct rusage usage = {};
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_maxrss * kKiB;
}

Bytes AvailableMemory() {
  const int64_t machine = FieldOf("/proc/meminfo", "MemAvailable:").value_or(0) * kKiB;
  return std::min(machine, RoomInGroups());
}

Bytes ProcessDiskReadBytes() {
  return FieldOf("/proc/self/io", "read_bytes:").value_or(0);
}

int UsableCores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) != 0) return 1;
  return std::max(1, CPU_COUNT(&set));
}

}  // namespace lime
