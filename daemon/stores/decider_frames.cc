#include "daemon/stores/decider_frames.h"

#include <xxhash.h>

#include <algorithm>
#include <bit>
#include <filesystem>
#include <memory>

#include "absl/strings/str_cat.h"
#include "common/sampling/logits_hash.h"
#include "daemon/formats/safetensors.h"
#include "daemon/machine/files.h"
#include "daemon/stores/safetensors_writer.h"
#include "planner/base/bytes.h"
#include "planner/base/check.h"

namespace lime {
namespace {

constexpr char kFramesKey[] = "lime_frames", kFramesVersion[] = "1";
constexpr Bytes kHashed = 1 * kMiB;  // at a time

static_assert(std::endian::native == std::endian::little, "numbers of the file are used as they are");

std::string MeanName(int32_t layer) {
  return absl::StrCat("layer.", layer, ".mean");
}
std::string AxesName(int32_t layer) {
  return absl::StrCat("layer.", layer, ".axes");
}

absl::StatusOr<std::string> HashOf(const FileDescriptor& file, const std::string& path) {
  LIME_ASSIGN_OR_RETURN(const Bytes bytes, FileBytes(file, path));
  const std::unique_ptr<XXH3_state_t, decltype(&XXH3_freeState)> state(XXH3_createState(), XXH3_freeState);
  XXH3_64bits_reset(state.get());
  std::vector<std::byte> buffer(static_cast<size_t>(std::min(bytes, kHashed)));
  for (Bytes at = 0; at < bytes; at += std::ssize(buffer)) {
    const auto part = std::span(buffer).first(static_cast<size_t>(std::min(bytes - at, kHashed)));
    LIME_RETURN_IF_ERROR(ReadExactly(file, path, at, part));
    XXH3_64bits_update(state.get(), part.data(), part.size());
  }
  return HashText(XXH3_64bits_digest(state.get()));
}

// A tensor of this type and shape.
template <typename T>
absl::StatusOr<std::vector<T>> ReadTensor(const FileDescriptor& file, const std::string& path, const SafetensorsHeader& header,
                                          const std::string& name, DType dtype, std::span<const int64_t> shape) {
  const auto found = std::ranges::find(header.tensors, name, &SafetensorsTensor::name);
  if (found == header.tensors.end() || !found->unknown_dtype.empty() || found->info.dtype != dtype ||
      !std::ranges::equal(found->info.shape, shape))
    return Invalid(path, ": has no tensor ", name, " of the type and shape that the calibration needs; run `lime calibrate` again");
  std::vector<T> values(static_cast<size_t>(found->info.bytes) / sizeof(T));
  LIME_RETURN_IF_ERROR(ReadExactly(file, path, found->offset, std::as_writable_bytes(std::span(values))));
  return values;
}

// Of the layer, as the file says; 0 if it has no such tensor.
int64_t ColumnsOf(const SafetensorsHeader& header, int32_t layer) {
  const auto found = std::ranges::find(header.tensors, MeanName(layer), &SafetensorsTensor::name);
  const bool fits = found != header.tensors.end() && found->info.shape.size() == 1 && found->info.shape[0] <= kMostProvenCols;
  return fits ? found->info.shape[0] : 0;
}

}  // namespace

std::string FramesFile(const std::string& calibration_file) {
  return std::filesystem::path(calibration_file).replace_extension(".frames").string();
}

absl::Status CheckFramesFile(const std::string& path) {
  if (!FileExists(path)) return absl::OkStatus();
  const absl::StatusOr<SafetensorsHeader> header = ReadSafetensorsHeader(path);
  if (header.ok() && header->metadata.contains(kFramesKey)) return absl::OkStatus();
  return Invalid(path, ": is no file of frames that LIME wrote, and would be replaced; move it, or give another name of the calibration");
}

absl::StatusOr<std::string> WriteFrames(const std::string& path, std::span<const LayerFrame> frames) {
  LIME_RETURN_IF_ERROR(CheckFramesFile(path));
  std::vector<SafetensorsWriter::Tensor> tensors;
  for (const LayerFrame& of : frames) {
    const int64_t cols = std::ssize(of.frame.mean);
    tensors.push_back({MeanName(of.layer), DType::kF32, {cols}});
    tensors.push_back({AxesName(of.layer), DType::kBF16, {std::ssize(of.frame.directions) / cols, cols}});
  }
  LIME_ASSIGN_OR_RETURN(const auto writer, SafetensorsWriter::Create(path, tensors, {.metadata = {{kFramesKey, kFramesVersion}}}));
  size_t tensor = 0;
  for (const LayerFrame& of : frames) {
    std::vector<BF16> axes;
    for (const float value : of.frame.directions) axes.push_back(FromFloat<BF16>(value));
    LIME_RETURN_IF_ERROR(writer->Write(tensor++, 0, std::as_bytes(std::span(of.frame.mean))));
    LIME_RETURN_IF_ERROR(writer->Write(tensor++, 0, std::as_bytes(std::span(axes))));
  }
  LIME_RETURN_IF_ERROR(writer->Finish());
  LIME_ASSIGN_OR_RETURN(const FileDescriptor file, OpenForReading(path));
  return HashOf(file, path);
}

absl::StatusOr<std::vector<LayerFrame>> ReadFrames(const std::string& path, const Calibration& calibration) {
  LIME_ASSIGN_OR_RETURN(const FileDescriptor file, OpenForReading(path));
  LIME_ASSIGN_OR_RETURN(const std::string hash, HashOf(file, path));
  if (hash != calibration.frames_xxh3)
    return absl::DataLossError(absl::StrCat(path, ": was not written with the calibration beside it; run `lime calibrate` again"));
  LIME_ASSIGN_OR_RETURN(const SafetensorsHeader header, ReadSafetensorsHeader(path));
  std::vector<LayerFrame> frames;
  for (const CopiedLayer& copy : calibration.copies) {
    const int32_t layer = copy.unproven.layer;
    const int64_t cols = ColumnsOf(header, layer);
    const int64_t mean_shape[] = {cols}, axes_shape[] = {copy.directions, cols};
    LayerFrame of{.layer = layer};
    LIME_ASSIGN_OR_RETURN(of.frame.mean, ReadTensor<float>(file, path, header, MeanName(layer), DType::kF32, mean_shape));
    LIME_ASSIGN_OR_RETURN(const std::vector<BF16> axes, ReadTensor<BF16>(file, path, header, AxesName(layer), DType::kBF16, axes_shape));
    for (const BF16 value : axes) of.frame.directions.push_back(ToFloat(value));
    frames.push_back(std::move(of));
  }
  return frames;
}

absl::StatusOr<std::map<int32_t, std::shared_ptr<const RowCopier>>> CopiersOf(std::span<const LayerFrame> frames,
                                                                              const Calibration& calibration) {
  std::map<int32_t, std::shared_ptr<const RowCopier>> copiers;
  for (const LayerFrame& of : frames) {
    const CopiedLayer* const copy = CopyOfLayer(calibration, of.layer);
    LIME_CHECK(copy != nullptr) << "layer " << of.layer;
    LIME_ASSIGN_OR_RETURN(RowCopier copier, RowCopier::Create(std::ssize(of.frame.mean), copy->bits, of.frame));
    copiers[of.layer] = std::make_shared<const RowCopier>(std::move(copier));
  }
  return copiers;
}

}  // namespace lime
