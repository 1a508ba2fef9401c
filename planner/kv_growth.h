// Plans whose KV grows: with rings of the best size for all levels of KV (planner/kv_levels.h), and where memory has no room for it or
// something else is faster, with KV on disks and in the memory of other devices (planner/kv_hosting.h).
#pragma once

#include "planner/kv_levels.h"

namespace lime {

// A plan made for the KV of its first level, with rings of the size that is fastest on average over all levels, and what then streams at
// the first. ResourceExhausted where no ring leads on to the whole context.
absl::StatusOr<Plan> PlanToGrow(const Plan& plan, const KvLevelOptions& options = {});

// The same for a plan that was cut for it (CutForKv): a device keeps only so many pages in memory and the others on its disk, or
// in the memory of another device, where it has no room for more whatever streams, or where that is faster on average over all levels than
// to stream more weights.
absl::StatusOr<Plan> PlanToSpill(const Plan& plan, const KvLevelOptions& options = {});

// A plan whose attention blocks have KV parts, so that a device's disk can take pages that memory has no room for
// (planner/plan/kv_spill.h).
//
// The same plan with the attention blocks of every device that has a disk, or with `for_hosts` of all, cut between V and O, and their KV in
// parts of about the size of the plan's largest ones. Nothing is on a disk yet: PlanDevice::max_layer_pages says that. One chunk of a
// prompt in a sweep, since what streams would wait for the last one. The cuts take a little more memory, which WithResidency divides anew,
// with another ring where it must (PlanToSpill); until then this is no valid plan. ResourceExhausted for too many parts; InvalidArgument
// for a plan of another model, that lends, or that reads for every micro-batch.
absl::StatusOr<Plan> CutForKv(const Plan& plan, const ModelSpec& spec, bool for_hosts = false);

}  // namespace lime
