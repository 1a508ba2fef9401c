// What a device keeps for itself where nobody has measured it: planned for before any daemon answers.
#pragma once

#include <cstdint>

#include "planner/base/bytes.h"
#include "planner/plan/model_spec.h"

namespace lime {

// The process with the kernels' libraries, and what the engine keeps free for page tables and small allocations.
inline constexpr Bytes kAssumedRuntime = 192 * kMiB;
inline constexpr Bytes kAssumedMargin = 16 * kMiB;

// Workspaces of a step of `rows`, of which `logit_rows` ask for logits, in sequences of up to `context` positions: the tensors that the
// decoder's forward pass needs (kernels/cpu_backend/workspace.h), the operators' scratch, and the hidden states that come and go.
Bytes AssumedActivations(const ModelSpec& spec, int64_t rows, int64_t logit_rows, int64_t context);

// What a ring of streamed pieces takes beside its room: a piece is contiguous, so one that does not fit before the end begins anew. 0 bytes
// in a piece: whole blocks.
Bytes RingSlack(const ModelSpec& spec, Bytes piece_bytes);

}  // namespace lime
