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
    kDecode,   // a token of every sequence; the tokens of a micro-batch come from its last step
    kPrefill,  // the chunks of one prompt, all known from the start; the last one makes the first token
  };
  Kind kind = Kind::kDecode;
  int32_t microbatches = 1;
  int64_t rows = 1;       // of every micro-batch but the last
  int64_t last_rows = 1;  // of the last

  friend bool operator==(const StepShape&, const StepShape&) = default;
};

// The decode step of a plan, and the prompt it is planned for.
StepShape DecodeShape(const Plan& plan);
StepShape PrefillShape(const Plan& plan);  // REQUIRES: plan.prompt_tokens > 0

// One Program per device of the plan, in its order; that of a device without a stage is empty. With several micro-batches a streamed part
// stays until the last one has used it (ReadsPerStep), so ResourceExhausted where the ring of a device does not hold what one of its stages
// streams. InvalidArgument where the plan or the shape is none.
absl::StatusOr<std::vector<Program>> Compile(const Plan& plan, const StepShape& shape);

}  // namespace lime
