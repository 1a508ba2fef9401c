#include "coordinator/planning/calibrations.h"

#include <algorithm>
#include <filesystem>
#include <utility>

#include "absl/strings/str_cat.h"
#include "coordinator/cli/command.h"
#include "coordinator/planning/routes.h"
#include "daemon/machine/files.h"
#include "daemon/weights/bundle_store.h"
#include "planner/base/strings.h"

namespace lime {
namespace {

using cli::OfUser;

// The layers of the model with such an MLP have as many neurons.
// `call`: writes a right one.
absl::Status CheckModel(const Calibration& calibration, const ModelSpec& spec, const std::string& path, std::string_view call) {
  if (calibration.model != RouteKey(spec))
    return Invalid(path, ": is of another model, ", calibration.model, "; make one with `", Text(call), "`");
  for (const LayerCalibration& layer : calibration.layers) {
    if (layer.layer >= spec.config.num_layers() || spec.config.layer(layer.layer).intermediate_size != layer.neurons)
      return Invalid(path, ": layer ", layer.layer, " has ", layer.neurons, " neurons, which the model does not have; make one with `",
                     Text(call), "`");
  }
  return absl::OkStatus();
}

// Whether the bundles of every layer of the calibration lie in its order.
bool LieOnPath(const BundleStore& store, const Calibration& calibration) {
  return std::ranges::all_of(calibration.layers, [&](const LayerCalibration& of) {
    const LayerBundles* const bundles = store.OfLayer(of.layer);
    return bundles == nullptr || std::ranges::equal(bundles->places(), of.places);
  });
}

absl::StatusOr<SparseModel> ReadAll(const Checkpoint& checkpoint, const ModelSpec& spec) {
  SparseModel model{.bundles = true};
  LIME_ASSIGN_OR_RETURN(model.neurons, BundleStore::SparseNeurons(checkpoint, spec));
  if (std::ranges::max(model.neurons) == 0) {
    model.neurons.clear();
    model.lacks =
        absl::StrCat("no layer of ", checkpoint.dir(), " can be computed from its bundles: its weights are infinite, or too large");
    return model;
  }
  LIME_ASSIGN_OR_RETURN(const BundleStore store, BundleStore::Open(checkpoint, spec));
  model.copies = store.Deciders(std::ssize(model.neurons));
  LIME_ASSIGN_OR_RETURN(std::optional<Calibration> calibration, ReadCalibration("", checkpoint.dir(), spec));
  if (!calibration) {
    model.lacks = kNoCalibration;
    return model;
  }
  model.on_path = LieOnPath(store, *calibration);
  model.calibration = std::make_shared<const Calibration>(*std::move(calibration));
  return model;
}

absl::StatusOr<SparseModel> ReadPredicted(const Checkpoint& checkpoint, const ModelSpec& spec) {
  absl::StatusOr<PredictorStore> predictor = PredictorStore::Open(checkpoint.dir(), spec);
  if (absl::IsNotFound(predictor.status()))
    return cli::WrongCall(absl::StrCat("--sparsity predicted: ", std::string(predictor.status().message()), "; train a predictor with `",
                                       Text(kTrainCall), "`, or use auto, off or exact"));
  LIME_RETURN_IF_ERROR(OfUser(predictor.status()));
  if (predictor->record().model != RouteKey(spec))
    return OfUser(
        Invalid(predictor->path(), ": is of another model, ", predictor->record().model, "; train one with `", Text(kTrainCall), "`"));
  LIME_ASSIGN_OR_RETURN(const std::string text, OfUser(predictor->ReadCalibration()));
  LIME_ASSIGN_OR_RETURN(Calibration calibration, OfUser(ParseCalibration(text, predictor->path(), kTrainCall)));
  LIME_RETURN_IF_ERROR(OfUser(CheckModel(calibration, spec, predictor->path(), kTrainCall)));
  absl::StatusOr<SparseModel> model = ReadAll(checkpoint, spec);
  if (!model.ok() && !absl::IsFailedPrecondition(model.status())) return OfUser(model.status());
  if (!model.ok()) model = SparseModel{.lacks = std::string(kNoBundles)};
  for (size_t layer = 0; layer < model->neurons.size(); ++layer) {
    if (predictor->RankOf(static_cast<int32_t>(layer)) == 0) model->neurons[layer] = 0;
  }
  if (!model->neurons.empty()) {
    LIME_ASSIGN_OR_RETURN(const BundleStore store, BundleStore::Open(checkpoint, spec));
    model->on_path = LieOnPath(store, calibration);
  }
  model->calibration = std::make_shared<const Calibration>(std::move(calibration));
  model->predictor = std::make_shared<const PredictorStore>(*std::move(predictor));
  return model;
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
  LIME_RETURN_IF_ERROR(OfUser(CheckModel(calibration, spec, file, kCalibrateCall)));
  return calibration;
}

std::vector<int32_t> PredictorRanks(const PredictorStore& predictor) {
  std::vector<int32_t> ranks;
  for (const PredictorLayerRecord& layer : predictor.record().layers) {
    ranks.resize(static_cast<size_t>(layer.layer) + 1);
    ranks.back() = layer.rank;
  }
  return ranks;
}

absl::StatusOr<SparseModel> ReadSparseModel(const Checkpoint& checkpoint, const ModelSpec& spec, SparsityWish wish) {
  if (wish == SparsityWish::kAuto && !MakesZeros(spec.config.activation)) return SparseModel{.lacks = std::string(kNoZeros)};
  if (wish == SparsityWish::kPredicted) return ReadPredicted(checkpoint, spec);
  absl::StatusOr<SparseModel> model = ReadAll(checkpoint, spec);
  if (wish == SparsityWish::kExact && model.ok() && model->neurons.empty())
    return cli::WrongCall(absl::StrCat("--sparsity exact: ", model->lacks, "; use --sparsity off"));
  if (model.ok()) return model;
  if (wish == SparsityWish::kExact) return OfUser(model.status());
  if (absl::IsFailedPrecondition(model.status())) return SparseModel{.lacks = std::string(kNoBundles)};
  return SparseModel{.bundles = true, .lacks = std::string(model.status().message())};
}

}  // namespace lime
