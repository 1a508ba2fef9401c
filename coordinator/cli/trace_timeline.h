// A measured timeline: what several devices have recorded, by one clock, in the form of a simulated one (planner/sim/timeline.h).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "coordinator/rpc/trace_collector.h"
#include "planner/base/status.h"
#include "planner/sim/timeline.h"

namespace lime::cli {

struct MeasuredTimeline {
  Timeline timeline;  // begins at 0 with the first span
  struct Device {
    bool traced = false;        // it has a part in the plan, and has answered
    double clock_error_ms = 0;  // its times are off by so much at most
    double round_trip_ms = 0;   // the least, to it and back
    int64_t lost = 0;           // spans that found no room
  };
  std::vector<Device> devices;  // as of the timeline
};

// `devices`: names, in the order of the plan; `parts`: names of its parts. A send ends where its message arrived, as far as is known and
// clocks allow, and begins where the link had room for it: as in a simulation. InvalidArgument for a span of what the plan does not have.
absl::StatusOr<MeasuredTimeline> MergeTraces(std::vector<std::string> devices, std::vector<std::string> parts,
                                             const std::vector<DeviceTrace>& traces);

// When the steps of a timeline were computed, from the first device that began to the last that ended. Steps ascend.
struct StepTime {
  int32_t step = 0;
  double begin_ms = 0, end_ms = 0;
};
std::vector<StepTime> StepsOf(const Timeline& timeline);

}  // namespace lime::cli
