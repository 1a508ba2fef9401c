// Calibrations of sparse MLPs (`lime calibrate`, planner/demand/calibration.h) as files.
#pragma once

#include <optional>
#include <string>

#include "planner/base/status.h"
#include "planner/demand/calibration.h"
#include "planner/plan/model/model_spec.h"

namespace lime {

// Where `lime calibrate` writes one for the model in this folder.
std::string CalibrationFile(const std::string& folder);

// Reads the file that the user names, or, with an empty `path`, that of the model's folder; nullopt if
// that folder has none. A wrong call if the file is no calibration, or is of another model than `spec`.
absl::StatusOr<std::optional<Calibration>> ReadCalibration(const std::string& path, const std::string& folder, const ModelSpec& spec);

}  // namespace lime
