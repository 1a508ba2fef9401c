// Divides memory among layers whose units are read on demand, where it saves most.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "planner/base/bytes.h"
#include "planner/base/status.h"
#include "planner/demand/hit_curve.h"

namespace lime {

// What one layer asks of its units.
struct LayerDemand {
  HitCurve hits;
  Bytes unit_bytes = 0;      // of a place
  double uses = 0;           // units that a step chooses, on average
  int32_t least = 1;         // places that it needs
  int32_t most = INT32_MAX;  // places that it may have; never more than its units
};

// Places of each layer, in at most `budget` bytes. Each layer has the least places first. Then each
// place goes to the layer where a byte saves most bytes of reading in a step:
//
//   uses * Gain(places), the lower layer among equals
//
// until no place fits, or none saves anything. As curves are concave, no other division of the same
// bytes saves more, but for what is left over if units differ in size. The numbers come from
// additions, products and quotients in a fixed order, so every device gets the same places.
//
// InvalidArgument for numbers outside their bounds. ResourceExhausted if the least places do not
// fit.
absl::StatusOr<std::vector<int32_t>> DividePlaces(std::span<const LayerDemand> layers, Bytes budget);

// Bytes that a step is expected to read: the sum of uses * unit_bytes * (1 - share of hits).
// REQUIRES: as many places as layers
double ExpectedReadBytes(std::span<const LayerDemand> layers, std::span<const int32_t> places);

}  // namespace lime
