#include "daemon/weights/predictor_store.h"

#include <algorithm>
#include <filesystem>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/machine/files.h"
#include "daemon/weights/bundled_mlp.h"
#include "planner/base/check.h"
#include "planner/base/strings.h"
#include "planner/demand/calibration.h"

namespace lime {
namespace {

absl::StatusOr<std::vector<std::byte>> ReadTensor(const FileDescriptor& file, const std::string& path, const BundleTensor& tensor) {
  std::vector<std::byte> bytes(static_cast<size_t>(tensor.bytes));
  LIME_RETURN_IF_ERROR(ReadExactly(file, path, tensor.offset, bytes));
  return bytes;
}

absl::StatusOr<std::string> ReadText(const std::string& path, const BundleTensor& tensor) {
  LIME_ASSIGN_OR_RETURN(const FileDescriptor file, OpenForReading(path));
  LIME_ASSIGN_OR_RETURN(const std::vector<std::byte> bytes, ReadTensor(file, path, tensor));
  return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

// The record says of each layer in the file, and of no other, what its tensors have.
absl::Status CheckRecord(const PredictorFile& file, const PredictorRecord& record, const std::string& path) {
  const bool same = std::ranges::equal(file.layers, record.layers, [](const PredictorTensors& tensors, const PredictorLayerRecord& of) {
    return tensors.shape.layer == of.layer && tensors.shape.neurons == of.neurons && tensors.shape.rank == of.rank;
  });
  if (same) return absl::OkStatus();
  return Invalid(path, ": its record is not of the layers that it has");
}

// What is wrong with a file, and what to do about it. A file that cannot be read is another matter.
absl::Status OfDamaged(absl::Status status) {
  if (!absl::IsInvalidArgument(status) && !absl::IsDataLoss(status)) return status;
  return absl::Status(status.code(), absl::StrCat(status.message(), "; train it again with `", Text(kTrainCall), "`"));
}

}  // namespace

std::string PredictorPath(std::string_view folder) {
  return (std::filesystem::path(folder) / kPredictorFileName).string();
}

absl::StatusOr<std::vector<PredictorShape>> PredictorShapes(const ModelSpec& spec, std::string_view folder) {
  LIME_ASSIGN_OR_RETURN(const std::vector<BundledMlp> mlps, BundledMlps(spec, folder));
  std::vector<PredictorShape> shapes;
  for (const BundledMlp& mlp : mlps) {
    if (mlp.packed) continue;
    shapes.push_back(
        {.layer = mlp.layer, .neurons = mlp.shape.neurons, .cols = mlp.rows().front()->info.shape[1], .dtype = spec.working_dtype});
  }
  return shapes;
}

absl::StatusOr<PredictorStore> PredictorStore::Open(const std::string& folder, const ModelSpec& spec) {
  PredictorStore store;
  store.path_ = PredictorPath(folder);
  if (!FileExists(store.path_)) return absl::NotFoundError(absl::StrCat(folder, ": has no ", Text(kPredictorFileName)));
  LIME_ASSIGN_OR_RETURN(const std::vector<PredictorShape> shapes, PredictorShapes(spec, folder));
  LIME_RETURN_IF_ERROR(OfDamaged(store.Read(shapes)));
  return store;
}

absl::Status PredictorStore::Read(std::span<const PredictorShape> shapes) {
  LIME_ASSIGN_OR_RETURN(const SafetensorsHeader header, ReadSafetensorsHeader(path_));
  LIME_ASSIGN_OR_RETURN(file_, FindPredictors(header, shapes, path_));
  LIME_ASSIGN_OR_RETURN(const std::string text, ReadText(path_, file_.record));
  LIME_ASSIGN_OR_RETURN(record_, ParsePredictorRecord(text, path_));
  LIME_RETURN_IF_ERROR(CheckRecord(file_, record_, path_));
  hash_ = PredictorHash(record_);
  return absl::OkStatus();
}

int64_t PredictorStore::RankOf(int32_t layer) const {
  const auto found = std::ranges::find(record_.layers, layer, &PredictorLayerRecord::layer);
  return found == record_.layers.end() ? 0 : found->rank;
}

absl::StatusOr<std::string> PredictorStore::ReadCalibration() const {
  return ReadText(path_, file_.calibration);
}

absl::StatusOr<std::shared_ptr<const LoadedPredictor>> PredictorStore::Load(int32_t layer) const {
  const auto tensors = std::ranges::find(file_.layers, layer, [](const PredictorTensors& of) { return of.shape.layer; });
  LIME_CHECK(tensors != file_.layers.end()) << "layer " << layer;
  LIME_ASSIGN_OR_RETURN(const FileDescriptor file, OpenForReading(path_));
  auto loaded = std::make_shared<LoadedPredictor>();
  PredictorBytes parts;
  for (size_t part = 0; part < kPredictorParts; ++part) {
    LIME_ASSIGN_OR_RETURN(loaded->parts[part], ReadTensor(file, path_, tensors->parts[part]));
    parts[part] = loaded->parts[part];
  }
  if (PredictorLayerHash(parts) != std::ranges::find(record_.layers, layer, &PredictorLayerRecord::layer)->xxh3)
    return OfDamaged(absl::DataLossError(absl::StrCat(path_, ": the predictor of layer ", layer, " differs from its checksum")));
  absl::StatusOr<PredictorView> view = ParsePredictor(tensors->shape, parts, path_);
  if (!view.ok()) return OfDamaged(view.status());
  loaded->view = *view;
  return loaded;
}

}  // namespace lime
