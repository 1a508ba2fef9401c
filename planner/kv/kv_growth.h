// Makes plans whose KV grows. They have rings of the best size for all KV levels
// (planner/kv/kv_levels.h). If memory is short, or if it is faster, KV goes to disks or to
// other devices.
#pragma once

#include "planner/kv/kv_levels.h"

namespace lime {

// Takes a plan for the KV of its first level. Returns it with the ring sizes that are fastest on
// average over all levels, and with the best streamed parts for the first level. ResourceExhausted
// if no ring reaches the whole context.
absl::StatusOr<Plan> PlanToGrow(const Plan& plan, const KvLevelOptions& options = {});

// The same for a plan from CutForKv. In two cases a device keeps only some pages in memory and the
// others on its disk or on a host: if it has no room for more pages even when everything streams,
// or if streaming more weights would be slower on average over all levels.
absl::StatusOr<Plan> PlanToSpill(const Plan& plan, const KvLevelOptions& options = {});

// A plan whose attention blocks have KV parts, so that a disk or a host can take the pages that do
// not fit in memory (planner/plan/kv_spill.h).
//
// Cuts the attention blocks of every device with a disk between V and O; with `for_hosts`, of all
// devices. KV parts are about as large as the plan's largest parts. No KV is away yet:
// PlanDevice::max_layer_pages decides that. Chunks of a prompt no longer share a sweep, because
// streamed parts would wait for the last one. Cuts need a little more memory, so the plan is not
// valid until PlanToSpill divides memory by WithResidency, with another ring if needed.
// ResourceExhausted for too many parts. InvalidArgument for a plan of another model, with a host,
// or if not Plan::reads_once.
absl::StatusOr<Plan> CutForKv(const Plan& plan, const ModelSpec& spec, bool for_hosts = false);

}  // namespace lime
