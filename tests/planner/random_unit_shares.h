// Divides the experts on demand of a random plan over some of its devices.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "planner/plan/model/model_spec.h"
#include "planner/plan/plan.h"
#include "planner/problem/unit_shares.h"

namespace lime {

// `below`(n): a random number from 0 to n - 1. All devices with a stage get experts, some of the
// others do. Leaves the plan as it is if it loads nothing on demand, or has too few devices or
// experts.
template <typename Below>
void DivideUnitsAtRandom(const ModelSpec& spec, const Below& below, Plan& plan) {
  std::vector<UnitShare> shares(plan.devices.size());
  std::vector<size_t> of;  // devices
  for (size_t d = 0; d < shares.size(); ++d) {
    const bool has_stage = std::ranges::find(plan.stages, static_cast<int32_t>(d), &Stage::device) != plan.stages.end();
    if (has_stage || below(2) == 0) of.push_back(d);
  }
  const int64_t experts = spec.config.experts ? spec.config.experts->count : 0;
  if (std::ranges::none_of(plan.parts, &PlanPart::on_demand) || of.size() < 2 || std::ssize(of) > experts) return;
  for (const size_t d : of) shares[d].units = 1;
  for (int64_t unit = std::ssize(of); unit < experts; ++unit) ++shares[of[static_cast<size_t>(below(static_cast<int>(of.size())))]].units;
  for (const size_t d : of) shares[d].places = 1 + below(static_cast<int>(shares[d].units));
  ReplaceUnits([&](int p, int32_t owner) { return DividedParts(spec.block(plan.parts[p].block), shares, owner, plan.parts[p]); }, plan);
  const std::vector<PlanNeed> needs = NeedsOf(plan);
  for (size_t d = 0; d < needs.size(); ++d) {
    PlanMemory& memory = plan.devices[d].memory;
    memory.margin += memory.weights - needs[d].weights;
    memory.weights = needs[d].weights;
  }
}

}  // namespace lime
