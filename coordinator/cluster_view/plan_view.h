// What a plan says about its devices and about one of its steps. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "coordinator/cluster_view/cluster_facts.h"
#include "planner/plan/plan.h"
#include "planner/sim/timeline.h"

namespace lime {

// Sets what the plan decides: numerics_id, budget, memory, blocks, streamed blocks, experts on
// demand, planned disk rate. A device without a part in the plan gets none of these.
void DescribeByPlan(const Plan& plan, DeviceFacts& device);

// Links of neighbouring stages, and from the last stage to the first, each once.
std::vector<LinkFacts> LinksOf(const Plan& plan);

// One step of the plan's schedule after the rings have filled. Empty if it cannot be simulated.
// Takes milliseconds, more for plans of many parts.
std::vector<SpanFacts> PredictedStep(const Plan& plan);

// The spans between the end of the step before and the end of `step`, cut off there. Empty if the
// timeline has no such step. A device with more than kMostSpans of a kind gets neighbours joined.
inline constexpr size_t kMostSpans = 256;
std::vector<SpanFacts> SpansOfStep(const Timeline& timeline, int32_t step);

}  // namespace lime
