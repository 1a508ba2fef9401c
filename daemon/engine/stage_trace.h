// What a StageEngine does, as spans for who traces it.
//
// Thread: the engine's, under its lock.   Owner: StageEngine.
#pragma once

#include <array>
#include <cstdint>

#include "daemon/logic/trace_ring.h"
#include "planner/plan/timeline_span.h"
#include "planner/program_runner.h"

namespace lime {

class StageTrace {
 public:
  static constexpr int kMaxLoadsUnderWay = 4;

  // REQUIRES: `ring` outlives this.
  explicit StageTrace(TraceRing& ring) : ring_(ring) {}

  // A load was given to the disk, for `step` as far as that is known. REQUIRES: at most kMaxLoadsUnderWay are under way
  void LoadBegun(const ProgramRunner::StartLoad& start, int64_t step, double now_ms);
  void LoadEnded(int64_t load, double now_ms);
  void Waited(const ProgramRunner::Waited& waited) { ring_.Add(SpanOf(waited)); }
  void Computed(const ProgramRunner::StartCompute& start, double begin_ms, double end_ms);
  void AttendedFor(int32_t device, int64_t step, double begin_ms, double end_ms);

 private:
  TraceRing& ring_;
  std::array<TimelineSpan, kMaxLoadsUnderWay> loading_;  // begun, by number of the load
  double last_loaded_ms_ = 0;
};

}  // namespace lime
