// A plan whose attention blocks have KV parts, so that a device's disk can take pages that memory has no room for
// (planner/plan/kv_spill.h).
#pragma once

#include "planner/base/status.h"
#include "planner/plan/model_spec.h"
#include "planner/plan/plan.h"

namespace lime {

// The same plan with the attention blocks of every device that has a disk, or with `for_hosts` of all, cut between V and O, and their KV in
// parts of about the size of the plan's largest ones. Nothing is on a disk yet: PlanDevice::max_layer_pages says that. One chunk of a
// prompt in a sweep, since what streams would wait for the last one. The cuts take a little more memory, which WithResidency divides anew,
// with another ring where it must (PlanToSpill); until then this is no valid plan. ResourceExhausted for too many parts; InvalidArgument
// for a plan of another model, that lends, or that reads for every micro-batch.
absl::StatusOr<Plan> CutForKv(const Plan& plan, const ModelSpec& spec, bool for_hosts = false);

}  // namespace lime
