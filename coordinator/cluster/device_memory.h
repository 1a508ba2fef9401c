// Assumed memory of a device besides weights and KV, for plans that are made before a daemon
// answers.
#pragma once

#include <cstdint>

#include "planner/base/bytes.h"
#include "planner/plan/model/model_spec.h"

namespace lime {

// Runtime: the process with the kernels' libraries. Margin: memory that the engine leaves free for
// page tables and small allocations.
inline constexpr Bytes kAssumedRuntime = 192 * kMiB;
inline constexpr Bytes kAssumedMargin = 16 * kMiB;

// Workspaces of a step of `rows` rows, `logit_rows` of them with logits, in sequences of at most
// `context` positions: tensors of the decoder's forward pass (kernels/cpu_backend/workspace.h),
// scratch of the operators, and hidden states in messages.
Bytes AssumedActivations(const ModelSpec& spec, int64_t rows, int64_t logit_rows, int64_t context);

// What a device needs besides, if it computes experts of other devices' layers for that many rows.
// REQUIRES: the model has experts
Bytes AssumedForOthers(const ModelSpec& spec, int64_t rows);

// What sparse MLPs need besides their neurons (planner/plan/sparse_parts.h) in steps of `rows` rows:
// workspaces of the kernels. `directions`: of the largest copy of a decider; -1: there is none.
Bytes AssumedForNeurons(const ModelSpec& spec, int64_t rows, int64_t directions);
// The same for predictors of at most that rank, which also name the neurons of prompts.
Bytes AssumedForPredictors(const ModelSpec& spec, int64_t rows, int64_t rank);

// Memory of a ring beyond its streamed parts. A part is contiguous, so a part that does not fit
// before the ring's end starts again at its beginning. `part_bytes` 0: whole blocks.
Bytes RingSlack(const ModelSpec& spec, Bytes part_bytes);

}  // namespace lime
