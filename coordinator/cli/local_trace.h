// The trace of a run in this process: one device, and its clock is ours.
//
// There is nobody to fetch spans while the run goes on, so all of them stay in the ring: what the memory of the process is counted against
// has them from the start, and no thread disturbs what is measured.
#pragma once

#include <string>
#include <vector>

#include "coordinator/cli/trace_timeline.h"
#include "daemon/logic/trace_ring.h"
#include "planner/plan/model_spec.h"

namespace lime::cli {

// Room for spans: 7 MB. A layer in memory takes two a step, and a streamed one two for each of its pieces.
inline constexpr size_t kLocalTraceSpans = size_t{1} << 17;

class LocalTrace {
 public:
  // Of the engine, which this outlives; parts are blocks.
  TraceRing* ring() { return &ring_; }

  // Once, when the engine has computed its last step.  `parts`: PartsOfModel
  absl::StatusOr<MeasuredTimeline> Finish(std::vector<std::string> parts);

 private:
  TraceRing ring_{kLocalTraceSpans};
};

std::vector<std::string> PartsOfModel(const ModelSpec& spec);

}  // namespace lime::cli
