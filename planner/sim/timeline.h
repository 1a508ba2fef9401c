// The events on every device over time, as text for people and as a Chrome/Perfetto trace for
// tools.
#pragma once

#include <cstdint>
#include <string>
#include <tuple>
#include <vector>

#include "planner/base/names.h"
#include "planner/plan/timeline_span.h"

namespace lime {

struct Timeline {
  std::vector<std::string> devices;
  std::vector<std::string> parts;   // names by part
  std::vector<TimelineSpan> spans;  // sorted by device, kind, time
};

// By device, kind, time.
void SortSpans(std::vector<TimelineSpan>& spans);

// Joins the sending of a message with its receiving: step, stage, micro-batch, sender, receiver.
using MessageKey = std::tuple<int32_t, int32_t, int32_t, int32_t, int32_t>;
MessageKey MessageOf(const TimelineSpan& span);

// Names in JSON.
inline constexpr Names<TimelineSpan::Kind, TimelineSpan::kKinds> kSpanKindNames = {{{TimelineSpan::Kind::kCompute, "compute"},
                                                                                    {TimelineSpan::Kind::kLoad, "load"},
                                                                                    {TimelineSpan::Kind::kSend, "send"},
                                                                                    {TimelineSpan::Kind::kAttendFor, "attend_for"},
                                                                                    {TimelineSpan::Kind::kWaitWeights, "wait_weights"},
                                                                                    {TimelineSpan::Kind::kWaitInput, "wait_input"},
                                                                                    {TimelineSpan::Kind::kWaitKv, "wait_kv"},
                                                                                    {TimelineSpan::Kind::kReceive, "receive"},
                                                                                    {TimelineSpan::Kind::kComputeFor, "compute_for"},
                                                                                    {TimelineSpan::Kind::kWaitHost, "wait_host"}}};

// The beginning of every TraceJson text. It distinguishes traces of LIME from traces of other
// programs.
inline constexpr char kTraceBegin[] = "{\"otherData\": {\"program\": \"lime\"}";

// Up to three rows per device (compute, disk, link, if used) over `columns` columns of [begin_ms,
// end_ms). A digit is the micro-batch that computes or travels (the stage, if there is one
// micro-batch). `=` is a load, `.` a wait for weights, a blank a wait for input. A column shows
// what fills most of it.
std::string GanttText(const Timeline& timeline, double begin_ms, double end_ms, int columns = 96);

// The trace event format: one process per device, one thread per row, and an arrow from each send
// to its receive if that was measured. Times are in microseconds.
std::string TraceJson(const Timeline& timeline);

}  // namespace lime
