// Reads how much memory there is and who waits for it. Linux; what a kernel does not say counts as plenty and calm.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/time/time.h"
#include "daemon/logic/residency_policy.h"
#include "daemon/weights/system_memory.h"

namespace lime {

// The line "some" of a PSI file.
struct MemoryStalls {
  absl::Duration total;  // since the machine, or the group, is there
  double avg10 = 0;
};
std::optional<MemoryStalls> ReadMemoryStalls(const std::string& path);

// Thread: one at a time.
class MemorySampler {
 public:
  // `proc`: /proc. `groups`: this process's, as MemoryGroups() has them.
  MemorySampler(const std::string& proc, std::vector<MemoryGroup> groups);

  // `source`: a constant. One of a PSI trigger counts as so much of a stall at least, since the totals in the files may be two seconds old.
  MemorySample Take(std::string_view source);

 private:
  // A PSI file, and how much of its total was told; ahead of the total where a trigger was faster.
  struct Stalls {
    std::string path;
    absl::Duration told;
  };
  static void Look(Stalls& stalls, bool triggered, MemorySample::Scope& scope);

  const std::string meminfo_;
  const std::vector<MemoryGroup> groups_;
  Stalls machine_, group_;  // an empty path: none
};

}  // namespace lime
