// What a plan makes of a stage's engine: the Programs that it runs, and whether it can carry the plan out.
#pragma once

#include <cstdint>
#include <vector>

#include "planner/base/status.h"
#include "planner/plan/micro_batch.h"
#include "planner/plan/model_spec.h"
#include "planner/plan/plan.h"
#include "planner/plan/program.h"

namespace lime {

// Of a step.
int32_t MostMicrobatches(const Plan& plan);

// InvalidArgument for messages larger than there may be; ResourceExhausted where KV grows, and its first residency does not fit.
// REQUIRES: `plan` is valid for `spec`
absl::Status CheckCarriedOut(const Plan& plan, const ModelSpec& spec);

// The Programs of one device for steps of 1, 2 .. micro-batches, or of as many as there are where each reads its own; ascending. With
// `before` those of the step in which its residency becomes that of `plan`.
absl::StatusOr<std::vector<Program>> CompileAll(const Plan& plan, int32_t device, const Plan* before = nullptr);

// Whether the plan says of a computation what it takes: a row of every sequence that it has for the micro-batch. Not where it says what
// the end of the context takes, and sequences get there step by step.
bool IsPlannedDecode(const Plan& plan, const Compute& what, const MicroBatch& batch);

}  // namespace lime
