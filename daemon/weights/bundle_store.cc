#include "daemon/weights/bundle_store.h"

#include <xxhash.h>

#include <algorithm>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "daemon/formats/block_store_manifest.h"
#include "daemon/formats/held_blocks.h"
#include "daemon/machine/files.h"
#include "planner/base/check.h"
#include "planner/base/strings.h"

namespace lime {
namespace {

// Reads a table of the file, and compares it with its checksum in the manifest.  REQUIRES: `bytes` is as long
absl::Status ReadTable(const FileDescriptor& file, const std::string& path, const StoredFile& stored, const BundleTensor& table,
                       std::span<std::byte> bytes) {
  const auto range = std::ranges::find_if(
      stored.ranges, [&](const StoredRange& each) { return each.offset == table.offset && each.bytes == table.bytes; });
  if (range == stored.ranges.end())
    return Invalid(path, ": ", kStoreManifestName, " has no checksum of the ", table.bytes, " bytes at offset ", table.offset,
                   "; remove the file and run `lime prepare` again");
  LIME_RETURN_IF_ERROR(ReadExactly(file, path, table.offset, bytes));
  if (XXH3_64bits(bytes.data(), bytes.size()) != range->xxh3)
    return absl::DataLossError(absl::StrCat(path, ": ", table.bytes, " bytes at offset ", table.offset,
                                            " differ from their checksum; remove the file and run `lime prepare` again"));
  return absl::OkStatus();
}

absl::StatusOr<std::vector<std::byte>> ReadTable(const FileDescriptor& file, const std::string& path, const StoredFile& stored,
                                                 const BundleTensor& table) {
  std::vector<std::byte> bytes(static_cast<size_t>(table.bytes));
  LIME_RETURN_IF_ERROR(ReadTable(file, path, stored, table, bytes));
  return bytes;
}

}  // namespace

absl::StatusOr<LayerBundles> LayerBundles::Open(std::string path, const StoredFile& stored, const BundledMlp& mlp) {
  LIME_ASSIGN_OR_RETURN(const SafetensorsHeader header, ReadSafetensorsHeader(path));
  if (header.file_bytes != stored.bytes)
    return absl::DataLossError(absl::StrCat(path, ": has ", header.file_bytes, " bytes, but ", kStoreManifestName, " says ", stored.bytes,
                                            "; run `lime prepare` again to write a new file"));
  LayerBundles out;
  out.layer_ = mlp.layer;
  out.file_bytes_ = stored.bytes;
  out.shape_ = mlp.shape;
  LIME_ASSIGN_OR_RETURN(const BundleFile tensors, FindBundles(header, mlp.shape, path));
  out.begin_ = tensors.bundles.offset;
  if (RoundUp(tensors.bundles.offset + tensors.bundles.bytes, kBundleReadAlign) > header.file_bytes)
    return Invalid(path, ": ends before the whole ", kBundleReadAlign,
                   " bytes that hold its last bundle; write the store again with `lime prepare`");
  LIME_ASSIGN_OR_RETURN(const FileDescriptor file, OpenForReading(path));
  LIME_ASSIGN_OR_RETURN(const std::vector<std::byte> places, ReadTable(file, path, stored, tensors.place));
  LIME_ASSIGN_OR_RETURN(out.places_, ParsePlaces(places, mlp.shape.neurons, path));
  LIME_ASSIGN_OR_RETURN(const std::vector<std::byte> sums, ReadTable(file, path, stored, tensors.sums));
  LIME_ASSIGN_OR_RETURN(out.sums_, ParseSums(sums, mlp.shape, path));
  const TensorInfo& decider = mlp.rows().front()->info;
  if (!mlp.packed) {
    LIME_ASSIGN_OR_RETURN(out.decider_, FindDecider(header, decider.shape[0], decider.shape[1], path));
  }
  out.stored_ = stored;
  out.path_ = std::move(path);
  return out;
}

absl::StatusOr<std::shared_ptr<const LoadedDecider>> LayerBundles::LoadDecider() const {
  LIME_CHECK(decider_.has_value()) << path_;
  LIME_ASSIGN_OR_RETURN(const FileDescriptor file, OpenForReading(path_));
  auto loaded = std::make_shared<LoadedDecider>();
  Bytes bytes = 0;
  for (const BundleTensor& part : decider_->parts) bytes += RoundUp(part.bytes, kStoreAlignment);
  LIME_ASSIGN_OR_RETURN(loaded->memory, HugeBuffer::Allocate(bytes));
  std::array<std::span<const std::byte>, kDeciderParts> parts;
  std::byte* to = loaded->memory.data();
  for (size_t i = 0; i < kDeciderParts; ++i) {
    const BundleTensor& part = decider_->parts[i];
    const std::span<std::byte> memory(to, static_cast<size_t>(part.bytes));
    LIME_RETURN_IF_ERROR(ReadTable(file, path_, stored_, part, memory));
    parts[i] = memory, to += RoundUp(part.bytes, kStoreAlignment);
  }
  LIME_ASSIGN_OR_RETURN(loaded->view, ParseDecider(decider_->shape, parts, path_));
  return loaded;
}

EnclosingRange LayerBundles::RangeOf(int32_t neuron, int first) const {
  const BundleLayout& layout = shape_.layout;
  LIME_CHECK(first >= 0 && first < layout.parts) << first;
  const int64_t record = begin_ + places_[static_cast<size_t>(neuron)] * layout.stride;
  return Enclosing(record + layout.PartAt(first), layout.record_bytes - layout.PartAt(first));
}

absl::Status LayerBundles::Check(int32_t neuron, int first, std::span<const std::byte> record) const {
  const auto parts = static_cast<size_t>(shape_.layout.parts);
  const std::span<const uint32_t> sums = std::span(sums_).subspan(static_cast<size_t>(neuron) * parts, parts);
  if (CheckBundle(shape_.layout, record, first, sums, path_).ok()) return absl::OkStatus();
  return CheckBundle(shape_.layout, record, first, sums, absl::StrCat(path_, ": layer ", layer_, ", neuron ", neuron));
}

absl::StatusOr<BundleStore> BundleStore::Open(const Checkpoint& checkpoint, const ModelSpec& spec,
                                              std::optional<std::span<const int32_t>> layers) {
  const auto has = [&](const char* name) { return FileExists(absl::StrCat(checkpoint.dir(), "/", name)); };
  if (has(kHeldBlocksName) && !has(kStoreManifestName)) {  // as Checkpoint::OpenPart
    return absl::FailedPreconditionError(
        absl::StrCat(checkpoint.dir(),
                     ": has pushed weights, which come without bundles; prepare a store with `lime prepare --bundles` on "
                     "this device, and name its folder as `weights` of the device in the cluster file"));
  }
  LIME_ASSIGN_OR_RETURN(const StoreManifest manifest, ReadStoreManifest(checkpoint.dir()));
  if (!manifest.bundles)
    return absl::FailedPreconditionError(
        absl::StrCat(checkpoint.dir(), ": is a block store without bundles; add them with `lime prepare --bundles`"));
  LIME_ASSIGN_OR_RETURN(const std::vector<BundledMlp> mlps, BundledMlps(spec, checkpoint.dir()));
  BundleStore store;
  for (const StoredBundles& bundles : *manifest.bundles) {
    if (bundles.why_not) continue;
    const auto mlp = std::ranges::find(mlps, bundles.layer, &BundledMlp::layer);
    if (mlp == mlps.end())
      return Invalid(checkpoint.dir(), "/", kStoreManifestName, ": has bundles of layer ", bundles.layer, ", which has no dense MLP");
    if (bundles.file != mlp->FileName())
      return Invalid(checkpoint.dir(), "/", kStoreManifestName, ": says that the bundles of layer ", bundles.layer, " are in ",
                     absl::CEscape(bundles.file), ", not in ", mlp->FileName(), "; remove the folder and prepare the model again");
    if (layers && std::ranges::find(*layers, bundles.layer) == layers->end()) continue;
    const auto stored = std::ranges::find(manifest.files, bundles.file, &StoredFile::name);
    LIME_ASSIGN_OR_RETURN(LayerBundles layer, LayerBundles::Open(absl::StrCat(checkpoint.dir(), "/", bundles.file), *stored, *mlp));
    store.layers_.push_back(std::move(layer));
  }
  return store;
}

absl::StatusOr<std::vector<int64_t>> BundleStore::SparseNeurons(const Checkpoint& checkpoint, const ModelSpec& spec) {
  LIME_ASSIGN_OR_RETURN(const BundleStore store, Open(checkpoint, spec));
  LIME_ASSIGN_OR_RETURN(const std::vector<BundledMlp> mlps, BundledMlps(spec, checkpoint.dir()));
  std::vector<int64_t> neurons(static_cast<size_t>(spec.config.num_layers()), 0);
  for (const BundledMlp& mlp : mlps) {
    const LayerBundles* const layer = store.OfLayer(mlp.layer);
    if (layer != nullptr) neurons[static_cast<size_t>(mlp.layer)] = layer->shape().neurons;
  }
  return neurons;
}

std::vector<DeciderForm> BundleStore::Deciders(int64_t layers) const {
  std::vector<DeciderForm> forms(static_cast<size_t>(layers));
  for (const LayerBundles& bundles : layers_) {
    const DeciderFile* const decider = bundles.decider();
    if (decider == nullptr) continue;
    forms[static_cast<size_t>(bundles.layer())] = {.bits = decider->shape.bits,
                                                   .directions = static_cast<int32_t>(decider->shape.directions)};
  }
  return forms;
}

const LayerBundles* BundleStore::OfLayer(int32_t layer) const {
  const auto found = std::ranges::find(layers_, layer, &LayerBundles::layer);
  return found == layers_.end() ? nullptr : &*found;
}

}  // namespace lime
