// Reads how much memory there is, and how long tasks waited for it. Linux. If a kernel does not
// report a value, the value counts as plenty of memory and no stall.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/time/time.h"
#include "daemon/logic/residency_policy.h"
#include "daemon/machine/system_memory.h"

namespace lime {

// The total of the line "some" of a PSI file: since the machine, or the group, began.
std::optional<absl::Duration> ReadMemoryStalls(const std::string& path);

// Thread: one at a time.
class MemorySampler {
 public:
  // `proc`: /proc. `groups`: those of this process, as from MemoryGroups().
  MemorySampler(const std::string& proc, std::vector<MemoryGroup> groups);

  // `source`: a constant. A PSI trigger counts as a stall of at least kTriggerStall, since the
  // totals in the files may be two seconds old.
  MemorySample Sample(std::string_view source);

 private:
  // A PSI file, and how much of its total was reported: more than all if a trigger came first.
  struct Stalls {
    std::string path;
    absl::Duration reported;
  };
  static void Look(Stalls& stalls, bool triggered, MemorySample::Scope& scope);

  const std::string meminfo_;
  const std::vector<MemoryGroup> groups_;
  Stalls machine_, group_;  // an empty path: none
};

}  // namespace lime
