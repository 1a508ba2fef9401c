// Spans that a device has recorded, as it is asked for them. Pure data.
#pragma once

#include <cstdint>
#include <vector>

#include "planner/plan/timeline_span.h"

namespace lime {

struct TraceCall {
  int64_t most = 0;  // spans; 0: the clock alone
  friend bool operator==(const TraceCall&, const TraceCall&) = default;
};

// Times are of the device's steady clock.
struct TraceChunk {
  int64_t epoch = -1;  // of the plan that the spans are of
  double received_ms = 0, answered_ms = 0;
  int64_t lost = 0;                 // spans that found no room, so far
  std::vector<TimelineSpan> spans;  // `device` is not said

  friend bool operator==(const TraceChunk&, const TraceChunk&) = default;
};

}  // namespace lime
