// Compiles a plan into the work of each device in one step.
#pragma once

#include <cstdint>
#include <vector>

#include "planner/base/status.h"
#include "planner/plan/plan.h"
#include "planner/plan/program.h"

namespace lime {

// The micro-batches that go through the pipeline in one step.
struct StepShape {
  enum class Kind : uint8_t {
    kDecode,   // one token of every sequence, from the previous step
    kPrefill,  // chunks of one prompt, known from the start
  };
  Kind kind = Kind::kDecode;
  int32_t microbatches = 1;
  int64_t rows = 1;         // of each micro-batch except the last
  int64_t last_rows = 1;    // of the last micro-batch
  bool ends_prompt = true;  // prefill: whether the last chunk gives the first token

  friend bool operator==(const StepShape&, const StepShape&) = default;
};

// The decode step of a plan.
StepShape DecodeShape(const Plan& plan);

// The steps of the planned prompt, each with Plan::chunks_per_sweep chunks; the last has the rest.
// A chunk does not wait for another to end. Empty without a planned prompt.
std::vector<StepShape> PrefillShapes(const Plan& plan);

// One Program per device of the plan, in its order; empty for a device without a stage. The loads
// of a device are the same for every shape (if Plan::reads_once), so a change of Program
// keeps what is in memory. With several micro-batches a streamed part stays until the last one
// has used it. ResourceExhausted if a ring cannot hold the streamed parts of one stage.
// InvalidArgument for an invalid plan or shape.
absl::StatusOr<std::vector<Program>> Compile(const Plan& plan, const StepShape& shape);

// The step in which the residency of `before` becomes that of `after`
// (planner/plan/plan_residency.h). Parts that stream in `after` are loaded as usual. Parts that
// stream only in `before` are loaded once more, and stay. InvalidArgument if more than the
// residency differs, or if not Plan::reads_once.
absl::StatusOr<std::vector<Program>> CompileChange(const Plan& before, const Plan& after, const StepShape& shape);

}  // namespace lime
