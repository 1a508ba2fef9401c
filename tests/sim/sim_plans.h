// Plans for simulated clusters, by chance: any stages over any of the devices, any parts streamed,
// rings as tight as they may be, KV in memory or as little of it as there may be.
#pragma once

#include <string>
#include <vector>

#include "planner/base/status.h"
#include "planner/plan/model/model_spec.h"
#include "planner/plan/plan.h"
#include "planner/plan/plan_residency.h"
#include "planner/search/random.h"

namespace lime {

struct SimPlanShape {
  int64_t context = 96;
  int32_t sequences = 1;
  int64_t prompt = 32;  // planned for
  int most_chunk = 24;  // rows
  bool spills = false;  // KV leaves the memory of devices
  bool grows = false;   // there is KV for less than the context at first
};

struct SimPlan {
  Plan plan;
  std::vector<Residency> levels;  // where KV grows: by KV pages, ascending, its own first
};

// A small model: 2 layers, or as many as there are.
ModelSpec SimModel(int layers);

// A random plan for some of the devices, at least one.  ResourceExhausted if no draw is valid.
absl::StatusOr<SimPlan> DrawSimPlan(Random& random, const ModelSpec& spec, const std::vector<std::string>& devices,
                                    const SimPlanShape& shape);

}  // namespace lime
