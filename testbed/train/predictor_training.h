// Trains the predictor of one layer of a sparse MLP (planner/plan/model/neuron_predictor.h) on what `lime calibrate`
// has seen.
//
//   start   the best copy of the decider of this rank on these inputs: the SVD of W C^(1/2), with C their
//           covariance, and the scale of z with the least loss
//   then    a few epochs of Adam (Kingma and Ba, 2015) on the loss of "LLM in a flash": the mean cross
//           entropy of a minibatch over its active elements, and over the others, half each
//
// One thread; a seed gives one result on one kind of processor.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace lime::train {

// What a layer has seen. Tensors are fp32 but for the masks.
struct PredictorJob {
  at::Tensor inputs;   // [tokens, cols]: of the decider
  at::Tensor masks;    // U8 [tokens, neurons / 8 rounded up]: bit i % 8 of byte i / 8 is set if neuron i is active
  at::Tensor decider;  // [neurons, cols]: its weights
  at::Tensor bias;     // [neurons]: of its output, less the threshold of the activation
};

// Reads the safetensors file that `lime calibrate` writes. InvalidArgument says what is wrong with it.
absl::StatusOr<PredictorJob> ReadPredictorJob(const std::string& path);

struct PredictorOptions {
  int64_t rank = 1;
  int64_t epochs = 3, minibatch = 128;
  uint64_t seed = 1;
  double rate = 0.02;  // of Adam, of the size of a parameter
};

// B (A x) + c > 0 for predicted neurons. fp32: a [rank, cols], b [neurons, rank], c [neurons].
struct TrainedPredictor {
  at::Tensor a, b, c;
};

// The start alone.  REQUIRES: 1 <= rank <= cols; at least one token
TrainedPredictor StartPredictor(const PredictorJob& job, int64_t rank);
TrainedPredictor TrainPredictor(const PredictorJob& job, const PredictorOptions& options);

// The balanced loss of all tokens.
double PredictorLoss(const PredictorJob& job, const TrainedPredictor& predictor);

absl::Status WritePredictor(const std::string& path, const TrainedPredictor& predictor);

}  // namespace lime::train
