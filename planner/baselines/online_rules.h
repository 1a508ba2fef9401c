// Rules for the parts that stream as KV grows, to compare LIME's with. Each is an OnlineRule of
// planner/kv/kv_levels.h.
#pragma once

#include <cstdint>
#include <vector>

#include "planner/plan/plan.h"

namespace lime {

// Eq. 5 to 7: a number of attention and MLP blocks more in every visit.
std::vector<int32_t> PaperRule(const Plan& plan, int device, Bytes room, int64_t layer_pages);

// No memory planner: a number of whole layers more in every visit.
std::vector<int32_t> WholeLayersRule(const Plan& plan, int device, Bytes room, int64_t layer_pages);

}  // namespace lime
