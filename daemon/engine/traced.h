// Computing as a span of a trace, where there is one.
#pragma once

#include <cstdint>

#include "common/steady_clock.h"
#include "daemon/logic/trace_ring.h"
#include "planner/base/status.h"

namespace lime {

// Computes `part` of the step, in one process: all of it is one stage and one micro-batch.
template <typename Compute>
absl::Status Traced(TraceRing* trace, int32_t step, int32_t part, Compute compute) {
  if (trace == nullptr) return compute();
  const double begin_ms = SteadyMs();
  const absl::Status status = compute();
  trace->Add({.kind = TimelineSpan::Kind::kCompute,
              .begin_ms = begin_ms,
              .end_ms = SteadyMs(),
              .step = step,
              .stage = 0,
              .microbatch = 0,
              .part = part});
  return status;
}

}  // namespace lime
