// The predictor of neurons in the folder of a model (daemon/formats/predictor_file.h).
//
// Immutable after Open; any thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "daemon/formats/predictor_file.h"
#include "planner/base/status.h"
#include "planner/plan/model/model_spec.h"
#include "planner/plan/model/neuron_predictor.h"

namespace lime {

// The predictor of a layer in memory.
struct LoadedPredictor {
  std::array<std::vector<std::byte>, kPredictorParts> parts;
  PredictorView view;  // into the parts
};

// Where `lime calibrate` writes that of the model in this folder.
std::string PredictorPath(std::string_view folder);

// Layers of the model that may have a predictor, ascending, without ranks: those with bundles of dense
// weights. Errors as of BundledMlps.
absl::StatusOr<std::vector<PredictorShape>> PredictorShapes(const ModelSpec& spec, std::string_view folder);

class PredictorStore {
 public:
  // Reads the header and the record. NotFound if the folder has no predictor. InvalidArgument names the
  // file and what is wrong, and the command that trains it again.  REQUIRES: `spec` is of the model in the folder
  static absl::StatusOr<PredictorStore> Open(const std::string& folder, const ModelSpec& spec);

  const std::string& path() const { return path_; }
  const PredictorRecord& record() const { return record_; }
  // Of all layers: two predictors with it give the same results.
  const std::string& hash() const { return hash_; }
  // 0 if the layer has none.
  int64_t RankOf(int32_t layer) const;
  // Text of the calibration of predicted neurons.
  absl::StatusOr<std::string> ReadCalibration() const;
  // Reads the layer and compares it with its checksum. DataLoss if it differs; other errors as of Open.
  // REQUIRES: the layer has one
  absl::StatusOr<std::shared_ptr<const LoadedPredictor>> Load(int32_t layer) const;

 private:
  absl::Status Read(std::span<const PredictorShape> shapes);

  std::string path_, hash_;
  PredictorFile file_;
  PredictorRecord record_;
};

}  // namespace lime
