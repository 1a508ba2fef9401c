// Calibrations that are made rather than measured, for tests.
#pragma once

#include <cmath>
#include <cstdint>
#include <memory>
#include <vector>

#include "planner/demand/calibration.h"

namespace lime {

// A token activates a share of the neurons, and with memory for all of them finds all there. `local`: how
// fast loads fall with memory; 1: in proportion to it.
inline LayerCalibration MadeLayer(int32_t layer, int32_t neurons, double active, double local = 3) {
  LayerCalibration made{.layer = layer, .neurons = neurons, .path_neurons_per_read = 1.5};
  for (int32_t neuron = 0; neuron < neurons; ++neuron) made.places.push_back(neuron);
  for (int k = 1; k <= 8; ++k) made.unions.push_back(1 - std::pow(1 - active, 1 + 0.3 * (k - 1)));
  for (const int32_t batch : {1, 2, 4, 8}) {
    BatchShares shares{.batch = batch, .active = 1 - std::pow(1 - active, batch)};
    constexpr int kPoints = 16;
    for (int i = 1; i <= kPoints; ++i) {
      const double kept = static_cast<double>(i) / kPoints;
      shares.points.push_back({.rows = neurons * i / kPoints, .loads = shares.active * std::pow(1 - kept, local)});
    }
    made.batches.push_back(shares);
  }
  made.fresh = made.unions[7] - made.unions[6];
  return made;
}

// Copies of 8 bits with 64 directions, which leave `unproven` of the neurons of every layer.
inline std::shared_ptr<const Calibration> WithCopies(const Calibration& calibration, double unproven, double local = 3) {
  Calibration made = calibration;
  made.frames_xxh3 = "fedcba9876543210";
  for (const LayerCalibration& layer : calibration.layers) {
    CopiedLayer copy{.bits = 8, .directions = 64, .unproven = MadeLayer(layer.layer, layer.neurons, unproven, local)};
    copy.unproven.places.clear();
    made.copies.push_back(std::move(copy));
  }
  return std::make_shared<const Calibration>(std::move(made));
}

inline std::shared_ptr<const Calibration> MadeCalibration(int layers, int32_t neurons, double active, double local = 3) {
  Calibration made{.model = "made", .text_xxh3 = "0123456789abcdef", .tokens = 1000, .context = 100, .masks = 8};
  for (int32_t layer = 0; layer < layers; ++layer) made.layers.push_back(MadeLayer(layer, neurons, active, local));
  return std::make_shared<const Calibration>(std::move(made));
}

}  // namespace lime
