#include "daemon/engine/stage_trace.h"

#include <algorithm>

namespace lime {

void StageTrace::LoadBegun(const ProgramRunner::StartLoad& start, int64_t step, double now_ms) {
  loading_[static_cast<size_t>(start.load % kMaxLoadsUnderWay)] = {
      .kind = TimelineSpan::Kind::kLoad, .begin_ms = now_ms, .step = static_cast<int32_t>(step), .part = start.what.part};
}

// The disk was asked before the load before it had ended, and reads one after another.
void StageTrace::LoadEnded(int64_t load, double now_ms) {
  TimelineSpan& span = loading_[static_cast<size_t>(load % kMaxLoadsUnderWay)];
  span.begin_ms = std::min(std::max(span.begin_ms, last_loaded_ms_), now_ms);
  span.end_ms = now_ms;
  last_loaded_ms_ = std::max(last_loaded_ms_, now_ms);
  ring_.Add(span);
}

void StageTrace::Computed(const ProgramRunner::StartCompute& start, double begin_ms, double end_ms) {
  ring_.Add({.kind = TimelineSpan::Kind::kCompute,
             .begin_ms = begin_ms,
             .end_ms = end_ms,
             .step = static_cast<int32_t>(start.step),
             .stage = start.what.stage,
             .microbatch = start.what.microbatch,
             .part = start.what.part});
}

void StageTrace::AttendedFor(int32_t device, int64_t step, double begin_ms, double end_ms) {
  ring_.Add(
      {.kind = TimelineSpan::Kind::kAttendFor, .begin_ms = begin_ms, .end_ms = end_ms, .step = static_cast<int32_t>(step), .peer = device});
}

}  // namespace lime
