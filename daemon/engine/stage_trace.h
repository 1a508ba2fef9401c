// Records what a StageEngine does, as spans of a trace.
//
// Thread: the engine's, under its lock.   Owner: StageEngine.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

#include "daemon/logic/trace_ring.h"
#include "planner/plan/timeline_span.h"
#include "planner/program/program_runner.h"

namespace lime {

class StageTrace {
 public:
  static constexpr int kMaxLoadsUnderWay = 4;

  // REQUIRES: `ring` outlives this.
  explicit StageTrace(TraceRing& ring) : ring_(ring) {}

  // A load begins, for `step` as far as known. REQUIRES: at most kMaxLoadsUnderWay are under way
  void LoadBegun(const ProgramRunner::StartLoad& start, int64_t step, double now_ms) {
    loading_[static_cast<size_t>(start.load % kMaxLoadsUnderWay)] = {
        .kind = TimelineSpan::Kind::kLoad, .begin_ms = now_ms, .step = static_cast<int32_t>(step), .part = start.what.part};
  }

  // The disk gets a load before the previous one has ended, and reads them in turn. So the span
  // begins no earlier than the previous load ended.
  void LoadEnded(int64_t load, double now_ms) {
    TimelineSpan& span = loading_[static_cast<size_t>(load % kMaxLoadsUnderWay)];
    span.begin_ms = std::min(std::max(span.begin_ms, last_loaded_ms_), now_ms);
    span.end_ms = now_ms;
    last_loaded_ms_ = std::max(last_loaded_ms_, now_ms);
    ring_.Add(span);
  }

  void Waited(const ProgramRunner::Waited& waited) { ring_.Add(SpanOf(waited)); }
  void Computed(const ProgramRunner::StartCompute& start, double begin_ms, double end_ms) {
    ring_.Add({.kind = TimelineSpan::Kind::kCompute,
               .begin_ms = begin_ms,
               .end_ms = end_ms,
               .step = static_cast<int32_t>(start.step),
               .stage = start.what.stage,
               .microbatch = start.what.microbatch,
               .part = start.what.part});
  }

  void AttendedFor(int32_t device, int64_t step, double begin_ms, double end_ms) {
    Worked(TimelineSpan::Kind::kAttendFor, device, step, begin_ms, end_ms);
  }
  void ComputedFor(int32_t device, int64_t step, double begin_ms, double end_ms) {
    Worked(TimelineSpan::Kind::kComputeFor, device, step, begin_ms, end_ms);
  }

 private:
  void Worked(TimelineSpan::Kind kind, int32_t device, int64_t step, double begin_ms, double end_ms) {
    ring_.Add({.kind = kind, .begin_ms = begin_ms, .end_ms = end_ms, .step = static_cast<int32_t>(step), .peer = device});
  }

  TraceRing& ring_;
  std::array<TimelineSpan, kMaxLoadsUnderWay> loading_;  // loads under way, by number
  double last_loaded_ms_ = 0;
};

}  // namespace lime
