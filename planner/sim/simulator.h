// Runs the Programs of a plan in simulated time: one ProgramRunner per device, with simulated disks
// and links.
//
// Deterministic. Every time is a maximum of other times plus one duration, added in the order that
// the schedule defines. The end of every step equals the Evaluator's, bit for bit.
#pragma once

#include <cstdint>
#include <vector>

#include "planner/base/bytes.h"
#include "planner/base/status.h"
#include "planner/plan/plan.h"
#include "planner/plan/program.h"
#include "planner/program/compile.h"
#include "planner/sim/timeline.h"

namespace lime {

struct SimulateOptions {
  int steps = 48;                      // decode steps
  bool timeline = true;                // whether to record spans
  size_t max_spans = size_t{1} << 21;  // number of spans recorded
};

struct SimulatedMemory {
  Bytes most_in_ring = 0;  // at any time
  // All memory together: runtime, activations, KV, weights, embedding, ring.
  Bytes most_used = 0;
  // The first step of the latest residency; -1: it never changed.
  int64_t last_border = -1;
};

struct SimulationResult {
  std::vector<double> step_ends_ms;      // when the last micro-batch leaves the last stage
  std::vector<SimulatedMemory> devices;  // by device of the plan
  Timeline timeline;
  int64_t events = 0;

  // The steady rate, from steps 16 to 47.  REQUIRES: 48 steps
  double MsPerStep() const;
};

// Simulates the decode step of a plan repeatedly, from an idle start with empty rings.
absl::StatusOr<SimulationResult> SimulateDecode(const Plan& plan, const SimulateOptions& options = {});

// Simulates the planned prompt from an idle start. The last of step_ends_ms is the time to the
// first token. InvalidArgument without a planned prompt.
absl::StatusOr<SimulationResult> SimulatePrefill(const Plan& plan, const SimulateOptions& options = {});

// A change of residency at `at_ms`, or when the change before has settled if that is later.
struct SimulatedChange {
  double at_ms = 0;
  Plan after;
  std::vector<std::vector<Program>> entering, settled;  // [shape][device]; CompileChange, Compile
};

// Consecutive steps of one kind. Their Programs come from Compile, and may differ between steps.
struct SimulatedSteps {
  StepShape::Kind kind = StepShape::Kind::kDecode;  // selects the times
  std::vector<std::vector<Program>> programs;       // [shape][device]
  std::vector<int32_t> steps;                       // shape of each step, in order
  std::vector<SimulatedChange> changes;             // in order of time
};
// Internal if the Programs block each other, compute with data that is not in memory, or use memory
// that the plan leaves free. That is a bug in their compiler. REQUIRES: the plan is valid and
// differs from the plans of the changes only in residency; each device has a Program for every
// shape, all with the same loads; `steps` are indices of these shapes
absl::StatusOr<SimulationResult> Simulate(const Plan& plan, const SimulatedSteps& script, const SimulateOptions& options = {});

}  // namespace lime
