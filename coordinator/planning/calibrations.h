// Calibrations of sparse MLPs (`lime calibrate`, planner/demand/calibration.h) as files.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "daemon/weights/checkpoint.h"
#include "daemon/weights/predictor_store.h"
#include "planner/base/status.h"
#include "planner/demand/calibration.h"
#include "planner/neuron_places.h"
#include "planner/plan/model/model_spec.h"
#include "planner/plan/sparse_parts.h"

namespace lime {

// Where `lime calibrate` writes one for the model in this folder.
std::string CalibrationFile(const std::string& folder);

// Reads the file that the user names, or, with an empty `path`, that of the model's folder; nullopt if
// that folder has none. A wrong call if the file is no calibration, or is of another model than `spec`.
absl::StatusOr<std::optional<Calibration>> ReadCalibration(const std::string& path, const std::string& folder, const ModelSpec& spec);

// What the folder of a model has for sparse MLPs.
struct SparseModel {
  std::vector<int64_t> neurons;  // BundleStore::SparseNeurons; empty: no layer can be sparse
  std::shared_ptr<const Calibration> calibration;
  std::vector<DeciderForm> copies;                  // by layer, of the deciders; without bits: none
  std::shared_ptr<const PredictorStore> predictor;  // with kPredicted; the calibration is of what it names then
  bool on_path = true;                              // all bundles lie in the order of the calibration
  bool bundles = false;                             // there are bundles, whether or not a layer can be computed from them
  std::string lacks;                                // why nothing can be sparse by itself; empty if it can
};
// For kAuto, what is missing, damaged or of another model makes nothing sparse, and `lacks` says why. For
// kExact, such bundles or such a calibration are a wrong call, but a missing calibration is not.
// For kPredicted, a missing predictor is a wrong call, but missing bundles are not.
// REQUIRES: the wish is not kOff; `spec` was built from `checkpoint`
absl::StatusOr<SparseModel> ReadSparseModel(const Checkpoint& checkpoint, const ModelSpec& spec, SparsityWish wish);

// By layer, the ranks of a predictor (PlanRequest::predictor_ranks).
std::vector<int32_t> PredictorRanks(const PredictorStore& predictor);

}  // namespace lime
