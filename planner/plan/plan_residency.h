// What of an installed plan may change while it runs: which parts stream, and how many KV pages every layer has. The memory of a device is
// one budget for both: as requests grow, pages take the place of parts that stream from then on.
#pragma once

#include <cstdint>
#include <vector>

#include "planner/base/status.h"
#include "planner/plan/plan.h"

namespace lime {

struct Residency {
  int64_t layer_pages = 0;        // of each layer, all sequences together
  std::vector<int32_t> streamed;  // parts, ascending

  friend bool operator==(const Residency&, const Residency&) = default;
};

Residency ResidencyOf(const Plan& plan);

// The same plan with another residency; rings stay, margins give or take, down to least_margin. ResourceExhausted, with the device and the
// numbers, where that does not fit a budget; InvalidArgument for parts that are not there, or where layers do not have the same number of
// pages.
absl::StatusOr<Plan> WithResidency(const Plan& plan, const Residency& residency);

// Pages that a layer needs for all sequences at the whole context, or for what is kept of it.
int64_t FullLayerPages(const Plan& plan);
// Whether KV is reserved for less than that, and is to grow.
inline bool GrowsKv(const Plan& plan) {
  return ResidencyOf(plan).layer_pages < FullLayerPages(plan);
}

// Whether one can become the other while it runs.
bool DifferInResidencyOnly(const Plan& one, const Plan& other);

}  // namespace lime
