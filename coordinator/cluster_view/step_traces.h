// The newest step that all devices have computed, from the spans that they record. Pure.
//
// Thread: the owner's.
// Bounds: the spans of kKeptSteps, and kKeptSpans of a device.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "common/device_report.h"
#include "coordinator/cluster_view/cluster_facts.h"
#include "coordinator/logic/clock_alignment.h"
#include "planner/plan/plan.h"

namespace lime {

class StepTraces {
 public:
  static constexpr int32_t kKeptSteps = 4;
  static constexpr size_t kKeptSpans = size_t{1} << 14;

  // An answer of `device`, with our times of asking and of the answer.
  void Add(const std::string& device, double sent_ms, double came_ms, const TraceChunk& chunk);
  // Nobody has looked for a while: what is kept of the device is old, and its clock may have drifted.
  void Forget(const std::string& device) { traces_.erase(device); }

  struct Step {
    int64_t step = 0;
    std::vector<SpanFacts> spans;
  };
  // Nothing if the devices of this plan have not recorded a whole step.
  std::optional<Step> Newest(const Plan& plan) const;

 private:
  // The clocks drift, so a comparison is used only until kSamples newer ones are there.
  static constexpr int64_t kSamples = 32;
  struct Trace {
    int64_t epoch = -1;
    ClockAlignment clock, next;
    std::vector<TimelineSpan> spans;  // of the last steps
    bool quiet = true;                // the last answer had no spans
  };
  std::map<std::string, Trace> traces_;
};

}  // namespace lime
