// Events by which the kernel tells at once that memory becomes scarce. Each source may be missing:
// an old or bare kernel, no permission, a container.
//
//   PSI triggers       tasks stalled for 100 ms in a second: on the machine (/proc/pressure/memory)
//                      and in our cgroups (v2, memory.pressure)
//   memory.events      v2: our cgroup, or one above it, reached its limit
//   pressure level     v1: the kernel reclaims memory in our cgroup
//   usage threshold    v1: less than the reserve, or four times that, is left below a limit
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/time/time.h"
#include "daemon/machine/files.h"
#include "daemon/machine/system_memory.h"
#include "planner/base/bytes.h"

namespace lime {

inline constexpr std::string_view kPsiSource = "psi";
inline constexpr std::string_view kGroupPsiSource = "cgroup psi";
// The least stall for which one of these two fires.
inline constexpr absl::Duration kTriggerStall = absl::Milliseconds(100);

struct PressureEvent {
  enum class Kind {
    kTrigger,  // a PSI file with a trigger: POLLPRI, nothing to be read
    kFile,     // a file of the kernel that has changed: POLLPRI until it is read
    kCounter,  // an eventfd: POLLIN until it is read
  };
  Kind kind = Kind::kTrigger;
  std::string_view source;    // name for samples; a constant
  std::string path;           // for messages
  FileDescriptor descriptor;  // to be polled
  FileDescriptor watched;     // kept open if the kernel needs it

  short poll_events() const;
  // Called after poll() has returned `revents`. False: no more events will come, the group is gone.
  bool Acknowledge(short revents) const;
};

// True if memory.pressure of the group is about that group alone. In a root group, and where v1
// counts memory, it is about the machine.
bool HasStallsOfItsOwn(const MemoryGroup& group);

// All sources that exist. `reserve`: for usage thresholds.
std::vector<PressureEvent> OpenPressureEvents(const std::string& proc, const std::vector<MemoryGroup>& groups, Bytes reserve);

}  // namespace lime
