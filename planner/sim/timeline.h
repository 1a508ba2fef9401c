// What happened when on every device: for people as text, for tools as a Chrome/Perfetto trace.
#pragma once

#include <string>
#include <vector>

#include "planner/base/names.h"
#include "planner/plan/timeline_span.h"

namespace lime {

struct Timeline {
  std::vector<std::string> devices;
  std::vector<std::string> parts;   // names, by part
  std::vector<TimelineSpan> spans;  // by device, then kind, then time
};

// In JSON.
inline constexpr Names<TimelineSpan::Kind, TimelineSpan::kKinds> kSpanKindNames = {{{TimelineSpan::Kind::kCompute, "compute"},
                                                                                    {TimelineSpan::Kind::kLoad, "load"},
                                                                                    {TimelineSpan::Kind::kSend, "send"},
                                                                                    {TimelineSpan::Kind::kAttendFor, "attend_for"},
                                                                                    {TimelineSpan::Kind::kWaitWeights, "wait_weights"},
                                                                                    {TimelineSpan::Kind::kWaitInput, "wait_input"},
                                                                                    {TimelineSpan::Kind::kWaitKv, "wait_kv"},
                                                                                    {TimelineSpan::Kind::kReceive, "receive"}}};

// How every text of TraceJson begins: what tells a trace that LIME wrote from those of other programs.
inline constexpr char kTraceBegin[] = "{\"otherData\": {\"program\": \"lime\"}";

// Three lanes for each device - compute, disk, link, the latter where they are used - over `columns` columns of [begin_ms, end_ms): the
// digit of the micro-batch that computes or travels (of the stage, where there is one micro-batch alone), `=` a load, `.` waiting for
// weights, a blank waiting for input. A column shows what filled most of it.
std::string GanttText(const Timeline& timeline, double begin_ms, double end_ms, int columns = 96);

// The trace event format: a process for each device, a thread for each lane, and an arrow from each send to its receive, where that was
// measured; times in microseconds.
std::string TraceJson(const Timeline& timeline);

}  // namespace lime
