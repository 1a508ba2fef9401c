// Random plans for simulated clusters: any stages over any of the devices, any streamed parts,
// rings as small as possible or larger, and KV in memory, on disks or on hosts.
#pragma once

#include <string>
#include <vector>

#include "planner/base/random.h"
#include "planner/base/status.h"
#include "planner/plan/model/model_spec.h"
#include "planner/plan/plan.h"
#include "planner/plan/plan_residency.h"

namespace lime {

struct SimPlanShape {
  int64_t context = 96;
  int32_t sequences = 1;
  int64_t prompt = 32;  // planned for
  int most_chunk = 24;  // rows
  bool spills = false;  // KV leaves the memory of devices
  bool grows = false;   // at first there is KV for a part of the context only
};

struct SimPlan {
  Plan plan;
  std::vector<Residency> levels;  // if KV grows: by KV pages, ascending; the plan's own first
};

// A small model with `layers` layers.
ModelSpec SimModel(int layers);
// The same with linear attention in all layers but one or two.
ModelSpec SimHybridModel(Random& random, int layers);
// The same with experts in all layers but one or none.
ModelSpec SimExpertsModel(Random& random, int layers);
// One with ReLU, whose MLPs may be sparse: gated, or plain as OPT's.
ModelSpec SimSparseModel(Random& random, int layers);

// A random plan for some of the devices, at least one.  ResourceExhausted if no draw is valid.
absl::StatusOr<SimPlan> DrawSimPlan(Random& random, const ModelSpec& spec, const std::vector<std::string>& devices,
                                    const SimPlanShape& shape);

}  // namespace lime
