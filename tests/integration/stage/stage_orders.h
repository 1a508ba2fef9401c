// Helpers of tests in which plans change: rings that fit any change, and the orders of prompts and
// tokens.
#pragma once

#include <vector>

#include "planner/plan/kv_spill.h"
#include "planner/plan/plan_residency.h"
#include "tests/integration/stage/stage_cluster.h"
#include "tests/integration/stage/stage_plans.h"

namespace lime {

// The plan with rings that are large enough if everything streams, and `more` bytes in each.
inline Plan Elastic(Plan plan, Bytes more = 0) {
  Plan all = plan;
  for (PlanPart& part : all.parts) part.streamed = true;
  const std::vector<PlanNeed> needs = NeedsOf(all);
  for (int d = 0; d < plan.NumDevices(); ++d) {
    PlanMemory& memory = plan.devices[d].memory;
    memory.margin -= needs[d].ring + more - memory.ring;
    memory.ring = needs[d].ring + more;
  }
  return plan;
}

// The KV with which a sequence begins, as in AdmitOrder.
struct KvThere {
  int64_t computed = 0;
  int32_t source = -1;
};

// The snapshot for so many positions of a sequence, if the plan has snapshots: each whole unit has its
// own. -1: there is none.
inline int32_t SnapshotFor(const Plan& plan, int64_t positions) {
  if (plan.state_snapshots == 0 || positions == 0 || positions % SharedKvUnit(plan) != 0) return -1;
  return static_cast<int32_t>(positions / SharedKvUnit(plan) % plan.state_snapshots);
}

// Orders a sequence of `positions` positions, and its prompt in chunks.
inline void OrderPrompt(StageCluster& cluster, const Plan& plan, int32_t s, const Reference& request, int64_t positions,
                        const KvThere& there = {}) {
  cluster.SendOrder(AdmitOrder{.sequence = s,
                               .request = s,
                               .positions = positions,
                               .prompt = request.prompt,
                               .computed = there.computed,
                               .source = there.source,
                               .snapshot = SnapshotFor(plan, there.computed)});
  for (size_t at = static_cast<size_t>(there.computed); at < request.prompt.size();) {
    MicroBatch batch;
    for (int64_t i = 0; i < plan.prefill_chunk && at < request.prompt.size(); ++i, ++at) {
      batch.rows.push_back({.sequence = s,
                            .token = request.prompt[at],
                            .position = static_cast<int32_t>(at),
                            .wants_logits = at + 1 == request.prompt.size(),
                            .snapshot = SnapshotFor(plan, static_cast<int64_t>(at) + 1)});
    }
    cluster.SendOrder(StepOrder{{std::move(batch)}});
  }
}

// Orders the next token of all sequences, in one step.
inline void OrderToken(StageCluster& cluster, const Plan& plan, const std::vector<Reference>& requests, int token) {
  StepOrder step;
  for (int32_t s = 0; s < static_cast<int32_t>(requests.size()); ++s) {
    if (s % plan.batch == 0) step.microbatches.emplace_back();
    const int32_t position = static_cast<int32_t>(requests[s].prompt.size()) + token;
    step.microbatches.back().rows.push_back(
        {.sequence = s, .token = kSampledToken, .position = position, .wants_logits = true, .snapshot = SnapshotFor(plan, position + 1)});
  }
  cluster.SendOrder(std::move(step));
}

}  // namespace lime
