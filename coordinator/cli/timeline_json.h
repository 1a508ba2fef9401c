// Spans of a timeline as commands print them with --json, simulated and measured alike.
#pragma once

#include "nlohmann/json.hpp"
#include "planner/sim/timeline.h"

namespace lime::cli {

// device, kind, begin_ms, end_ms, step, and where the span says them stage, microbatch, part, peer.
nlohmann::ordered_json EventJson(const Timeline& timeline, const TimelineSpan& span);

}  // namespace lime::cli
