// A measured timeline: the spans of several devices on one clock, in the form of a simulated one
// (planner/sim/timeline.h).
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
    double clock_error_ms = 0;  // maximum error of its times
    double round_trip_ms = 0;   // shortest round trip to it
    int64_t lost = 0;           // dropped spans
  };
  std::vector<Device> devices;  // in the order of the timeline
};

// `devices` and `parts`: names, in the order of the plan. A send ends when its message arrived, as
// far as that is known and clocks allow. It begins when the link was free for it, as in a
// simulation. InvalidArgument if a span names something that the plan does not have.
absl::StatusOr<MeasuredTimeline> MergeTraces(std::vector<std::string> devices, std::vector<std::string> parts,
                                             const std::vector<DeviceTrace>& traces);

// When a step was computed: from the first device's begin to the last device's end. Steps ascend.
struct StepTime {
  int32_t step = 0;
  double begin_ms = 0, end_ms = 0;
};
std::vector<StepTime> StepsOf(const Timeline& timeline);

}  // namespace lime::cli
