// Reports on a measured timeline.
#pragma once

#include <string>

#include "coordinator/reports/trace_timeline.h"
#include "nlohmann/json.hpp"
#include "planner/sim/timeline.h"

namespace lime::cli {

// The last steps as a Gantt chart, then a line per device for the whole run, then how much loading
// was hidden.
std::string TraceText(const MeasuredTimeline& trace, int steps, int columns);

// One sentence: how much loading was hidden, and how many spans were lost.
std::string TraceSentence(const MeasuredTimeline& trace);

// hidden_loading (null if nothing was loaded), spans, lost_spans, devices, steps; and events, if
// asked for.
nlohmann::json TraceReport(const MeasuredTimeline& trace, bool events);

// A span in --json output, simulated or measured: device, kind, begin_ms, end_ms, step; and stage,
// microbatch, part, peer if the span has them.
nlohmann::ordered_json EventJson(const Timeline& timeline, const TimelineSpan& span);

}  // namespace lime::cli
