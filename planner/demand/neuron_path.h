// The order of bundles in a file: neurons that are active together lie side by side, so that one read
// brings several.
//
// The order is a path through the graph of co-activation: it begins with the most active neuron, and
// goes on to the neuron with the largest Jaccard index with the last one, the steps that have both
// over the steps that have either. "LLM in a flash", section 3.2, instead puts a copy of each neuron's
// closest friend beside it, and finds that the most active neurons are everybody's friend and are read
// again and again. On a path, each neuron has one place.
//
// Pure and deterministic: indices are compared as fractions of integers.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "planner/base/status.h"
#include "planner/demand/mask_statistics.h"

namespace lime {

// By neuron: its place, each from 0 to neurons - 1 once. Among equals, the lower neuron comes first; if
// no neuron is left that was active together with the last one, the most active one follows. The time
// is in proportion to the sum of the squares of the masks' sizes. InvalidArgument for masks that are
// not of the layer, or another number of neurons than 1 to kMostRouteUnits. `ends` is asked for every
// neuron; once it is true, Cancelled.
absl::StatusOr<std::vector<int32_t>> PathPlaces(
    Masks masks, int32_t neurons, const std::function<bool()>& ends = [] { return false; });

}  // namespace lime
