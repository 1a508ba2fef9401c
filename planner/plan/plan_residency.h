// The part of an installed plan that may change while it runs: which parts stream, and the KV pages
// per layer. Both share a device's budget. As requests grow, pages replace parts, which then
// stream.
#pragma once

#include <cstdint>
#include <vector>

#include "planner/base/status.h"
#include "planner/plan/plan.h"

namespace lime {

struct Residency {
  // Of a layer, for all sequences together. A layer that gives pages back has at most what its
  // window needs (KvWindow).
  int64_t layer_pages = 0;
  std::vector<int32_t> streamed;  // indices of parts, ascending

  friend bool operator==(const Residency&, const Residency&) = default;
};

Residency ResidencyOf(const Plan& plan);

// The same plan with another residency. Rings stay; margins grow or shrink, down to least_margin.
// ResourceExhausted with device and numbers if it exceeds a budget. InvalidArgument for missing
// parts, or if layers differ in their number of pages.
absl::StatusOr<Plan> WithResidency(const Plan& plan, const Residency& residency);

// Pages per layer for all sequences at the whole context, or for the positions not evicted. If all
// layers give pages back: for the window.
int64_t FullLayerPages(const Plan& plan);
// Whether KV has fewer than FullLayerPages now, and will grow.
inline bool GrowsKv(const Plan& plan) {
  return ResidencyOf(plan).layer_pages < FullLayerPages(plan);
}

// Whether one plan can change into the other while it runs.
bool DifferInResidencyOnly(const Plan& one, const Plan& other);

}  // namespace lime
