// From a plan to what each device does in a step.
#pragma once

#include <cstdint>
#include <vector>

#include "planner/base/status.h"
#include "planner/plan/plan.h"
#include "planner/plan/program.h"

namespace lime {

// What flows through the pipeline in one step.
struct StepShape {
  enum class Kind : uint8_t {
    kDecode,   // a token of every sequence; those of a micro-batch come from its last step
    kPrefill,  // chunks of one prompt, known from the start
  };
  Kind kind = Kind::kDecode;
  int32_t microbatches = 1;
  int64_t rows = 1;         // of every micro-batch but the last
  int64_t last_rows = 1;    // of the last
  bool ends_prompt = true;  // of a prefill: its last chunk makes the first token

  friend bool operator==(const StepShape&, const StepShape&) = default;
};

// The decode step of a plan.
StepShape DecodeShape(const Plan& plan);

// The steps of the prompt that it is planned for, Plan::chunks_per_sweep chunks in each, what is left in the last. No chunk waits for
// another to end. Empty where no prompt was planned.
std::vector<StepShape> PrefillShapes(const Plan& plan);

// One Program per device of the plan, in its order; that of a device without a stage is empty. The loads of a device are the same whatever
// the shape (unless every micro-batch reads its own), so it goes from one Program to another and drops nothing that it has read ahead.
// With several micro-batches a streamed part stays until the last one has used it (ReadsPerStep): ResourceExhausted where the ring of a
// device does not hold what one of its stages streams. InvalidArgument where the plan or the shape is none.
absl::StatusOr<std::vector<Program>> Compile(const Plan& plan, const StepShape& shape);

// The one step in which a plan's residency becomes another's (planner/plan/plan_residency.h): what streams in `after` is loaded as in its
// Programs, and what streams in `before` alone is loaded once more, to stay. InvalidArgument where they differ in more than residency, or
// where every micro-batch reads its own.
absl::StatusOr<std::vector<Program>> CompileChange(const Plan& before, const Plan& after, const StepShape& shape);

}  // namespace lime
