// Plans whose KV grows: with rings of the best size for all levels of KV (planner/kv_levels.h), and where memory has no room for it or
// something else is faster, with KV on disks and in the memory of other devices (planner/kv_hosting.h).
#pragma once

#include "planner/kv_levels.h"

namespace lime {

// A plan made for the KV of its first level, with rings of the size that is fastest on average over all levels, and what then streams at
// the first. ResourceExhausted where no ring leads on to the whole context.
absl::StatusOr<Plan> PlanToGrow(const Plan& plan, const KvLevelOptions& options = {});

// The same for a plan that was cut for it (planner/kv_parts.h): a device keeps only so many pages in memory and the others on its disk, or
// in the memory of another device, where it has no room for more whatever streams, or where that is faster on average over all levels than
// to stream more weights.
absl::StatusOr<Plan> PlanToSpill(const Plan& plan, const KvLevelOptions& options = {});

}  // namespace lime
