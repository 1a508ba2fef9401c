#include "daemon/weights/system_memory.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <sstream>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "planner/base/strings.h"

namespace lime {
namespace {

// Names of one cgroup version's files and fields.
struct CgroupVersion {
  std::string_view folder, limit, usage;
  std::string_view inactive, active;
};
constexpr CgroupVersion kV1{"/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file", "total_active_file"};
constexpr CgroupVersion kV2{"", "memory.max", "memory.current", "inactive_file", "active_file"};

// A number in the file, or `otherwise` ("max" in cgroup v2, or no such file).
Bytes ReadNumber(const std::string& path, Bytes otherwise) {
  std::ifstream in(path);
  Bytes value = 0;
  return in >> value ? value : otherwise;
}

Bytes RoomOfGroup(const std::string& folder, const CgroupVersion& version, Bytes otherwise) {
  const Bytes limit = ReadNumber(folder + std::string(version.limit), -1);
  if (limit < 0) return otherwise;
  Bytes cache = 0;
  std::ifstream stat(folder + "memory.stat");
  std::string key;
  for (Bytes value = 0; stat >> key >> value;) {
    if (key == version.inactive || key == version.active) cache += value;
  }
  return std::clamp<Bytes>(limit - ReadNumber(folder + std::string(version.usage), 0) + cache, 0, otherwise);
}

// The version of a line "id:controllers:path", or null where it does not concern memory.
const CgroupVersion* VersionOf(std::string_view controllers) {
  if (controllers.empty()) return &kV2;
  const std::string list = absl::StrCat(",", Text(controllers), ",");
  return list.find(",memory,") != std::string::npos ? &kV1 : nullptr;
}

}  // namespace

Bytes CgroupRoom(std::istream& self, const std::string& root, Bytes otherwise) {
  Bytes room = otherwise;
  for (std::string line; std::getline(self, line);) {
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const CgroupVersion* const version = VersionOf(std::string_view(line).substr(first + 1, second - first - 1));
    if (version == nullptr) continue;
    std::string group = line.substr(second + 1);
    if (group == "/") group.clear();
    for (;; group = group.substr(0, group.rfind('/'))) {
      room = RoomOfGroup(root + std::string(version->folder) + group + "/", *version, room);
      if (group.find('/') == std::string::npos) break;
    }
  }
  return room;
}

Bytes AvailableMemory() {
  std::ifstream in("/proc/meminfo");
  std::string key;
  Bytes available = static_cast<Bytes>(::sysconf(_SC_PHYS_PAGES)) * ::sysconf(_SC_PAGESIZE);
  for (std::string line; std::getline(in, line);) {
    std::istringstream fields(line);
    Bytes kib = 0;
    if (fields >> key >> kib && key == "MemAvailable:") available = kib * kKiB;
  }
  std::ifstream self("/proc/self/cgroup");
  return CgroupRoom(self, "/sys/fs/cgroup", available);
}

}  // namespace lime
