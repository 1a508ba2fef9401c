// Compiles the Programs that a stage's engine runs for a plan, and checks that it can carry the
// plan out.
#pragma once

#include <cstdint>
#include <vector>

#include "planner/base/status.h"
#include "planner/plan/micro_batch.h"
#include "planner/plan/model/model_spec.h"
#include "planner/plan/plan.h"
#include "planner/plan/program.h"

namespace lime {

// InvalidArgument if messages are too large. ResourceExhausted if KV grows, and its first residency
// does not fit.
// REQUIRES: `plan` is valid for `spec`
absl::Status CheckCarriedOut(const Plan& plan, const ModelSpec& spec);

// The Programs of one device for steps of 1, 2 .. micro-batches, ascending; for the planned number
// alone if each micro-batch reads its own weights. With `before`: for the step in which residency
// changes from that of `before` to that of `plan`.
absl::StatusOr<std::vector<Program>> CompileAll(const Plan& plan, int32_t device, const Plan* before = nullptr);

// True if no two rows are of one sequence: a step of decoding, or a prompt's last token alone.
bool IsDecode(const MicroBatch& batch);

// True if the plan predicts the time of a computation: the micro-batch has a row of every sequence
// that the plan puts into it. False if the plan evicts KV: then the prediction is for the end of
// the context, which sequences reach step by step.
bool IsPlannedDecode(const Plan& plan, const Compute& what, const MicroBatch& batch);

}  // namespace lime
