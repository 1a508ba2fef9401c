// What the planted neurons of a model do, computed from its own weights.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "planner/base/status.h"
#include "testbed/make_model/model_tensors.h"

namespace lime {

// Shares of the neurons of a layer, over masks of consecutive positions.
struct MaskShares {
  double one = 0;    // of a mask
  double five = 0;   // of the union of 5 masks
  double fresh = 0;  // in a mask, and in none of the 5 before
};
struct PlantedStatistics {
  MaskShares active;
  MaskShares predicted;        // by the best predictor of rank r that misses 5 % of the active ones
  double false_positives = 0;  // its share of the neurons that are not active
};

// Of up to 2,048 neurons of the first layer at up to 160 positions, with a random token at each. The
// attention before them is left out. Takes seconds at most.
// REQUIRES: `tensors` are those of a model with planted neurons, and at least 6 positions
absl::StatusOr<PlantedStatistics> MeasurePlantedNeurons(std::span<const RandomTensor> tensors, uint64_t seed);

// The figures beside those of the paper, in lines for people.
std::string StatisticsText(const PlantedStatistics& statistics);

}  // namespace lime
