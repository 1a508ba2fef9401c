#include "daemon/pressure/memory_sampler.h"

#include <algorithm>
#include <fstream>
#include <sstream>

#include "daemon/pressure/pressure_events.h"

namespace lime {

std::optional<absl::Duration> ReadMemoryStalls(const std::string& path) {
  std::ifstream in(path);
  for (std::string line; std::getline(in, line);) {
    const size_t total = line.find(" total=");
    if (!line.starts_with("some ") || total == std::string::npos) continue;
    int64_t microseconds = 0;
    if (!(std::istringstream(line.substr(total + 7)) >> microseconds)) return std::nullopt;
    return absl::Microseconds(microseconds);
  }
  return std::nullopt;
}

MemorySampler::MemorySampler(const std::string& proc, std::vector<MemoryGroup> groups)
    : meminfo_(proc + "/meminfo"), groups_(std::move(groups)), machine_{proc + "/pressure/memory", absl::ZeroDuration()} {
  const auto own = std::ranges::find_if(groups_, HasStallsOfItsOwn);
  if (own != groups_.end()) group_.path = own->folder + "memory.pressure";
  MemorySample::Scope ignored;
  Look(machine_, false, ignored);
  Look(group_, false, ignored);
}

void MemorySampler::Look(Stalls& stalls, bool triggered, MemorySample::Scope& scope) {
  if (stalls.path.empty()) return;
  const std::optional<absl::Duration> now = ReadMemoryStalls(stalls.path);
  if (!now) return;
  const absl::Duration least = triggered ? kTriggerStall : absl::ZeroDuration();
  scope.stalled = std::max(least, *now - stalls.reported);
  stalls.reported += scope.stalled;
}

MemorySample MemorySampler::Sample(std::string_view source) {
  MemorySample sample{.available = INT64_MAX};
  sample.source = source;
  std::ifstream meminfo(meminfo_);
  for (std::string line, key; std::getline(meminfo, line);) {
    Bytes kib = 0;
    if (!(std::istringstream(line) >> key >> kib)) continue;
    if (key == "MemAvailable:") sample.available = kib * kKiB;
    if (key == "MemFree:") sample.machine.free = kib * kKiB;
  }
  for (const MemoryGroup& group : groups_) {
    const GroupMemory memory = ReadGroupMemory(group);
    if (memory.limit == INT64_MAX) continue;
    sample.available = std::clamp<Bytes>(memory.limit - memory.used + memory.cache, 0, sample.available);
    sample.group.free = std::clamp<Bytes>(memory.limit - memory.used, 0, sample.group.free);
  }
  Look(machine_, source == kPsiSource, sample.machine);
  Look(group_, source == kGroupPsiSource, sample.group);
  return sample;
}

}  // namespace lime
