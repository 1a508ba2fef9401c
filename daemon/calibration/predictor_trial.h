// A predictor of one layer (planner/plan/model/neuron_predictor.h), between the run that shows what the layer sees and
// the program that trains it: what that program gets, what it returns, and how good that is.
//
// What is measured is what a run computes: the numbers in the working dtype, on the kernel of every run.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "daemon/calibration/mask_run.h"
#include "daemon/formats/predictor_file.h"
#include "planner/base/status.h"
#include "planner/demand/calibration.h"

namespace lime {

// The first tokens of a text train; the others measure.
struct PredictorTrial {
  int64_t taught = 0;
  std::string folder;  // for the two files of a training
  // Trains the predictor of `job` to the file `out`, both in that folder.
  std::function<absl::Status(const std::string& job, const std::string& out, int64_t rank)> train;
  int num_threads = 1;
  std::string numerics = "auto";
};

// By token: the neurons that a predictor names, ascending. Cancelled once inputs.cancelled is set.
// REQUIRES: the inputs are those of its layer
absl::StatusOr<std::vector<std::vector<int32_t>>> PredictedMasks(const LayerInputs& inputs, const PredictorView& predictor, DType working,
                                                                 int num_threads, const std::string& numerics);

struct TriedPredictor {
  PredictorLayer layer;
  PredictorLayerRecord record;
  std::vector<std::vector<int32_t>> masks;  // by token: predicted neurons, ascending
};

// `shape`: with the rank that is wanted. InvalidArgument for inputs that are a sample or have fewer tokens
// than `taught` + 1, and for a result that is no predictor of this shape; errors of `train`.
absl::StatusOr<TriedPredictor> TryPredictor(const LayerInputs& inputs, const PredictorShape& shape, const PredictorTrial& trial);

}  // namespace lime
