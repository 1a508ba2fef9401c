// What a measured timeline says of a run.
#pragma once

#include <string>

#include "coordinator/cli/trace_timeline.h"
#include "nlohmann/json.hpp"
#include "planner/sim/timeline.h"

namespace lime::cli {

// The last steps as a Gantt chart, then a line for each device over the whole run, then what of the loading was hidden.
std::string TraceText(const MeasuredTimeline& trace, int steps, int columns);

// One sentence of that: how much of the loading was hidden, and what was lost.
std::string TraceSentence(const MeasuredTimeline& trace);

// hidden_loading (null where nothing was loaded), spans, lost_spans, devices, steps; and events where they are asked for.
nlohmann::json TraceReport(const MeasuredTimeline& trace, bool events);

// A span as commands print it with --json, simulated or measured: device, kind, begin_ms, end_ms, step, and where the span says them stage,
// microbatch, part, peer.
nlohmann::ordered_json EventJson(const Timeline& timeline, const TimelineSpan& span);

}  // namespace lime::cli
