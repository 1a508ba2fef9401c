// Runs the Programs of a plan in simulated time: one ProgramRunner for each device, disks that read, links that carry.
//
// Deterministic. Every time is the latest of a few others plus one duration, added in the order of the schedule's definition, so that the
// end of every step is that of the Evaluator bit for bit.
#pragma once

#include <cstdint>
#include <vector>

#include "planner/base/bytes.h"
#include "planner/base/status.h"
#include "planner/compile.h"
#include "planner/plan/plan.h"
#include "planner/plan/program.h"
#include "planner/sim/timeline.h"

namespace lime {

struct SimulateOptions {
  int steps = 48;                      // of decoding
  bool timeline = true;                // spans are kept
  size_t max_spans = size_t{1} << 21;  // the first so many
};

struct SimulatedMemory {
  Bytes most_in_ring = 0;    // at any instant
  Bytes most_used = 0;       // of everything together: runtime, activations, KV, weights, embedding, ring
  int64_t last_border = -1;  // the first step of the residency that was taken up last; -1: it never changed
};

struct SimulationResult {
  std::vector<double> step_ends_ms;      // when the last micro-batch left the last stage
  std::vector<SimulatedMemory> devices;  // by device of the plan
  Timeline timeline;
  int64_t events = 0;

  // The steady rate, from steps 16 to 47.  REQUIRES: 48 steps
  double MsPerStep() const;
};

// The decode step of a plan, over and over, from an idle start with empty rings.
absl::StatusOr<SimulationResult> SimulateDecode(const Plan& plan, const SimulateOptions& options = {});

// The planned prompt from an idle start; the last of step_ends_ms is the time to its first token. InvalidArgument where no prompt was
// planned.
absl::StatusOr<SimulationResult> SimulatePrefill(const Plan& plan, const SimulateOptions& options = {});

// Another residency, that devices take up at `at_ms` or, where the change before has not settled by then, once it has.
struct SimulatedChange {
  double at_ms = 0;
  Plan after;
  std::vector<std::vector<Program>> entering, settled;  // [shape][device]; CompileChange, Compile
};

// Steps of one kind, one after another. Their Programs come from Compile, and one step may differ from the next.
struct SimulatedSteps {
  StepShape::Kind kind = StepShape::Kind::kDecode;  // whose times hold
  std::vector<std::vector<Program>> programs;       // [shape][device]
  std::vector<int32_t> steps;                       // shapes, in order
  std::vector<SimulatedChange> changes;             // by time
};
// Internal where the Programs block one another, compute with what is not in memory, or use memory that the plan is to leave free: a bug
// of whoever made them.
// REQUIRES: the plan is valid and differs from those of the changes in residency only; a Program of every shape for each device, those of
// a device with the same loads; steps are of these shapes
absl::StatusOr<SimulationResult> Simulate(const Plan& plan, const SimulatedSteps& script, const SimulateOptions& options = {});

}  // namespace lime
