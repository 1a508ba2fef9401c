#include "coordinator/planning/calibrations.h"

#include <filesystem>

#include "coordinator/cli/command.h"
#include "coordinator/planning/routes.h"
#include "daemon/machine/files.h"

namespace lime {
namespace {

using cli::OfUser;

// The layers of the model with such an MLP have as many neurons.
absl::Status CheckModel(const Calibration& calibration, const ModelSpec& spec, const std::string& path) {
  if (calibration.model != RouteKey(spec))
    return Invalid(path, ": is of another model, ", calibration.model, "; make one with `lime calibrate`");
  for (const LayerCalibration& layer : calibration.layers) {
    if (layer.layer >= spec.config.num_layers() || spec.config.layer(layer.layer).intermediate_size != layer.neurons)
      return Invalid(path, ": layer ", layer.layer, " has ", layer.neurons, " neurons, which the model does not have");
  }
  return absl::OkStatus();
}

}  // namespace

std::string CalibrationFile(const std::string& folder) {
  return (std::filesystem::path(folder) / "calibration.json").string();
}

absl::StatusOr<std::optional<Calibration>> ReadCalibration(const std::string& path, const std::string& folder, const ModelSpec& spec) {
  const std::string file = path.empty() ? CalibrationFile(folder) : path;
  if (path.empty() && !FileExists(file)) return std::nullopt;
  LIME_ASSIGN_OR_RETURN(const std::string text, OfUser(ReadNamedText(file, kMostCalibrationBytes)));
  LIME_ASSIGN_OR_RETURN(Calibration calibration, OfUser(ParseCalibration(text, file)));
  LIME_RETURN_IF_ERROR(OfUser(CheckModel(calibration, spec, file)));
  return calibration;
}

}  // namespace lime
