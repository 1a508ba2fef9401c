// `lime calibrate --predictor`: trains the predictors of a model's layers while it is calibrated, and
// measures the model with them.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "daemon/calibration/mask_run.h"
#include "daemon/calibration/predictor_trial.h"
#include "daemon/weights/predictor_store.h"
#include "nlohmann/json.hpp"
#include "planner/base/for_each.h"
#include "planner/base/status.h"
#include "planner/demand/calibration.h"
#include "planner/plan/model/model_spec.h"

namespace lime::cli {

// The program that trains, which lies beside lime if it was built: it needs libtorch.
inline constexpr std::string_view kPredictorTrainer = "train_predictor";

class PredictorTraining {
 public:
  struct Options {
    std::string model;  // folder, to which the predictor is written
    std::string ranks;  // of --predictor: one for all layers, or one for each layer that may have one
    int64_t seed = 1;
    int threads = 1;
    std::string numerics = "auto";
    std::vector<std::vector<int32_t>> sequences;  // of the text
    ForEach for_each = InTurn;                    // shares the statistics of masks
  };

  // A wrong call for ranks that the model cannot have, a text that is too short, and a file of that name that
  // LIME did not write. NotFound, in a sentence, without the program that trains.
  static absl::StatusOr<std::unique_ptr<PredictorTraining>> Create(const ModelSpec& spec, const Options& options);
  PredictorTraining(const PredictorTraining&) = delete;
  PredictorTraining& operator=(const PredictorTraining&) = delete;
  ~PredictorTraining();  // removes its folder

  // Trains the predictor of a layer, if it may have one. In the order of RunForMasks.
  absl::Status TakeInputs(const LayerInputs& inputs);
  // What the layer activates, after TakeInputs.
  absl::Status TakeLayer(const LayerCalibration& exact);
  // Writes the predictor, measures the perplexity with and without it, and writes both down.
  // `calibration`: of the model, without layers.
  absl::Status Finish(Calibration calibration, int32_t context);

  nlohmann::json Json() const;
  void Print() const;

 private:
  PredictorTraining(const ModelSpec& spec, const Options& options) : spec_(spec), options_(options) {}
  absl::Status ReadRanks();
  absl::StatusOr<double> Perplexity(const std::string& sparsity) const;

  const ModelSpec& spec_;
  const Options options_;
  std::vector<PredictorShape> shapes_;
  std::string program_;
  PredictorTrial trial_;
  size_t taught_sequences_ = 0;
  PredictorRecord record_;
  std::vector<PredictorLayer> layers_;
  std::vector<LayerCalibration> predicted_;
  std::vector<std::vector<int32_t>> masks_;  // of the layer at work
};

}  // namespace lime::cli
