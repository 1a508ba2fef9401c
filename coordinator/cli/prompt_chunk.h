// Prompts through a plan that was made without one.
#pragma once

#include <cstdint>

#include "planner/plan/model_spec.h"
#include "planner/plan/plan.h"

namespace lime::cli {

// Rows that a plan made for a run's prompts flows together at least, if its context has room: what a fault makes it compute again is a
// prompt too, and longer.
inline constexpr int64_t kLeastPromptChunk = 64;

// A plan that says nothing of prompts flows them a micro-batch of decode rows at a time. With as long a chunk as what its devices leave
// free has room for, at most kLeastPromptChunk or the prompt, it flows them faster; the plan as it was where there is no room. REQUIRES:
// plan.prefill_chunk == 0
Plan WithPromptChunk(Plan plan, const ModelSpec& spec, int64_t prompt_tokens);

}  // namespace lime::cli
