// What the kernel tells at once when memory becomes scarce. Each source may be missing: an old or a bare kernel, no permission, a
// container.
//
//   PSI triggers        tasks stalled for 100 ms in a second: of the machine (/proc/pressure/memory) and of our cgroups (v2,
//   memory.pressure) memory.events       v2: our cgroup, or one above it, reached its limit pressure level      v1: the kernel reclaims in
//   our cgroup usage threshold     v1: less than the reserve, or four of it, is left below a limit
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/time/time.h"
#include "daemon/weights/files.h"
#include "daemon/weights/system_memory.h"
#include "planner/base/bytes.h"

namespace lime {

inline constexpr std::string_view kPsiSource = "psi";
inline constexpr std::string_view kGroupPsiSource = "cgroup psi";
inline constexpr absl::Duration kTriggerStall = absl::Milliseconds(100);  // at least, where one of these two fires

struct PressureEvent {
  enum class Kind {
    kTrigger,  // a PSI file with a trigger: POLLPRI, nothing to be read
    kFile,     // a file of the kernel that has changed: POLLPRI until it is read
    kCounter,  // an eventfd: POLLIN until it is read
  };
  Kind kind = Kind::kTrigger;
  std::string_view source;    // what samples say of it; a constant
  std::string path;           // for people
  FileDescriptor descriptor;  // to be polled
  FileDescriptor watched;     // kept open, where the kernel needs it

  short poll_events() const;
  // After poll() has returned `revents`. False: there will be no more, the group is gone.
  bool Acknowledge(short revents) const;
};

// Whether memory.pressure of the group is about the group's memory: a root group's is the machine's, and so is any where v1 counts memory.
bool HasStallsOfItsOwn(const MemoryGroup& group);

// All there are. `reserve`: for usage thresholds.
std::vector<PressureEvent> OpenPressureEvents(const std::string& proc, const std::vector<MemoryGroup>& groups, Bytes reserve);

}  // namespace lime
