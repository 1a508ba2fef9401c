// Watches the memory of the machine and of our cgroups, and reports samples: at once if the kernel
// says that memory becomes scarce, and every quarter of a second in any case, since most sources
// do not report the end of the pressure.
//
// Thread: its own, which calls `on_sample`.   Owner: StageResidency.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/time.h"
#include "daemon/logic/residency_policy.h"
#include "daemon/pressure/memory_sampler.h"
#include "daemon/pressure/pressure_events.h"

namespace lime {

class PressureMonitor {
 public:
  struct Options {
    // Memory to be left free. The monitor asks for events near this amount.
    Bytes reserve = 0;
    absl::Duration interval = absl::Milliseconds(250);       // between samples
    absl::Duration near_interval = absl::Milliseconds(50);   // if available < 4 * reserve
    absl::Duration event_interval = absl::Milliseconds(20);  // at least, after an event's sample
    bool use_events = true;
    std::function<void(const MemorySample&)> on_sample;
    // For tests.
    std::string proc = "/proc";
    std::vector<MemoryGroup> groups = MemoryGroups();
  };

  // The first sample follows at once.
  static absl::StatusOr<std::unique_ptr<PressureMonitor>> Start(Options options);
  // No sample is delivered after it returns. Not to be called from `on_sample`.
  ~PressureMonitor();
  PressureMonitor(const PressureMonitor&) = delete;
  PressureMonitor& operator=(const PressureMonitor&) = delete;

  // The sources: "memory watched through /proc/pressure/memory (psi), ... and every 250 ms".
  const std::string& Describe() const { return description_; }

 private:
  PressureMonitor(Options options, FileDescriptor stop, std::vector<PressureEvent> events);
  void Run();
  // Waits for an event, `longest` at most. Returns its source; "": stop. Drops groups that ended.
  std::string_view Wait(absl::Duration longest);
  bool StopWithin(absl::Duration time) const;

  const Options options_;
  const FileDescriptor stop_;          // an eventfd
  std::vector<PressureEvent> events_;  // monitor's thread only
  std::string description_;
  MemorySampler sampler_;
  std::thread thread_;
};

}  // namespace lime
