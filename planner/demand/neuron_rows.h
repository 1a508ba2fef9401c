// Divides memory for neurons among sparse MLPs, from what a text activates (calibration.h).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "planner/base/bytes.h"
#include "planner/base/status.h"
#include "planner/demand/calibration.h"

namespace lime {

// A layer whose MLP may be sparse.
struct SparseLayer {
  const LayerCalibration* calibration = nullptr;  // not null
  Bytes row_bytes = 0;                            // memory for a neuron
  double read_ms = 1;                             // to read a neuron, or in proportion to that
};

// Neuron rows of each layer, in at most `budget` bytes: each row goes to the layer where a byte saves
// most time of reading in a step of `batch` sequences. Every layer has at least one row, and room for
// the neurons of a step if all layers have. ResourceExhausted if one row of each does not fit.
// InvalidArgument for numbers outside their bounds.
absl::StatusOr<std::vector<int64_t>> DivideNeuronRows(std::span<const SparseLayer> layers, int64_t batch, Bytes budget);

// Bytes that a step of `batch` sequences is expected to read.  REQUIRES: as many rows as layers
double ExpectedNeuronBytes(std::span<const SparseLayer> layers, std::span<const int64_t> rows, int64_t batch);

}  // namespace lime
