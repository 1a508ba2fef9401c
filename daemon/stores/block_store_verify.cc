#include <algorithm>
#include <optional>

#include "absl/strings/str_cat.h"
#include "daemon/formats/hashing_reader.h"
#include "daemon/stores/block_store.h"
#include "daemon/weights/bundle_store.h"
#include "daemon/weights/checkpoint.h"

namespace lime {
namespace {

// Names the place of [begin, end) in a file, such as "block mlp 3". If several blocks overlap it,
// the first one among `suspects`.
std::string PlaceOf(const StoredFile& file, int64_t begin, int64_t end, const std::vector<bool>& suspects) {
  for (size_t i = 0; i < file.blocks.size(); ++i) {
    const StoredBlock& block = file.blocks[i];
    if (suspects[i] && end > block.offset && begin < block.offset + block.bytes) return "block " + BlockName(block.id);
  }
  return file.blocks.empty() ? "the file" : "its header or a tensor of no block";
}

absl::Status CheckSize(const StoredFile& file, const std::string& path) {
  LIME_ASSIGN_OR_RETURN(const FileDescriptor opened, OpenForReading(path));
  LIME_ASSIGN_OR_RETURN(const Bytes bytes, FileBytes(opened, path));
  if (bytes == file.bytes) return absl::OkStatus();
  const int64_t first = std::min(bytes, file.bytes);
  return absl::DataLossError(absl::StrCat(path, ": has ", bytes, " bytes, but the manifest says ", file.bytes, ", so ",
                                          PlaceOf(file, first, first + 1, std::vector<bool>(file.blocks.size(), true)),
                                          " differs from offset ", first, "; run `lime prepare` again to write a new file"));
}

// [begin, end) of the first row whose checksum differs, if there is one.
std::optional<std::pair<int64_t, int64_t>> FirstRow(const StoredFile& found, const StoredFile& file) {
  for (size_t i = 0; i < found.rows.size(); ++i) {
    const StoredRows& table = found.rows[i];
    const auto row = std::ranges::mismatch(table.xxh3, file.rows[i].xxh3).in1 - table.xxh3.begin();
    const int64_t begin = table.offset + row * table.row_bytes;
    if (row < static_cast<int64_t>(table.xxh3.size())) return std::pair(begin, begin + table.row_bytes);
  }
  return std::nullopt;
}

// [begin, end) of the first row of the embedding that differs, otherwise of the first range. If no
// range differs, the first block that differs; if no block differs, the whole file.
std::pair<int64_t, int64_t> FirstDifference(const StoredFile& found, const StoredFile& file) {
  if (const auto row = FirstRow(found, file)) return *row;
  const auto range = std::ranges::mismatch(found.ranges, file.ranges).in1;
  if (range != found.ranges.end()) return {range->offset, range->offset + range->bytes};
  const auto block = std::ranges::mismatch(found.blocks, file.blocks).in1;
  if (block != found.blocks.end()) return {block->offset, block->offset + block->bytes};
  return {0, file.bytes};
}

// The error of the first neuron whose bundle differs. OK if `name` is no file of bundles, or if none
// differs: then the damage is elsewhere in the file.
absl::Status CheckNeurons(const std::string& store_dir, const std::string& name) {
  LIME_ASSIGN_OR_RETURN(const Checkpoint checkpoint, Checkpoint::Open(store_dir));
  LIME_ASSIGN_OR_RETURN(const ModelSpec spec, checkpoint.BuildModelSpec());
  LIME_ASSIGN_OR_RETURN(const BundleStore store, BundleStore::Open(checkpoint, spec));
  for (const LayerBundles& layer : store.layers()) {
    if (layer.path() != absl::StrCat(store_dir, "/", name)) continue;
    LIME_ASSIGN_OR_RETURN(const FileDescriptor file, OpenForReading(layer.path()));
    for (int32_t neuron = 0; neuron < layer.shape().neurons; ++neuron) {
      const EnclosingRange range = layer.RangeOf(neuron, 0);
      std::vector<std::byte> bytes(static_cast<size_t>(layer.shape().layout.record_bytes));
      LIME_RETURN_IF_ERROR(ReadExactly(file, layer.path(), range.offset + range.skipped, bytes));
      LIME_RETURN_IF_ERROR(layer.Check(neuron, 0, bytes));
    }
  }
  return absl::OkStatus();
}

// `found` has the checksums of the whole file. Its rows, ranges or blocks tell where it differs.
absl::Status CheckWhole(const StoredFile& found, const StoredFile& file, const std::string& path) {
  if (found == file) return absl::OkStatus();
  std::vector<bool> differ;
  for (size_t i = 0; i < found.blocks.size(); ++i) differ.push_back(found.blocks[i].xxh3 != file.blocks[i].xxh3);
  const auto [begin, end] = FirstDifference(found, file);
  return absl::DataLossError(absl::StrCat(path, ": ", PlaceOf(file, begin, end, differ), " differs from its checksum between offsets ",
                                          begin, " and ", end, "; remove the file and run `lime prepare` again"));
}

}  // namespace

absl::StatusOr<VerifyReport> VerifyBlockStore(const std::string& store_dir, const LoadOptions& options) {
  LIME_ASSIGN_OR_RETURN(const StoreManifest manifest, ReadStoreManifest(store_dir));
  for (const StoredFile& file : manifest.files) LIME_RETURN_IF_ERROR(CheckSize(file, store_dir + "/" + file.name));
  LIME_ASSIGN_OR_RETURN(HashingReader reader, HashingReader::Create());
  LoadWatcher watcher(options, manifest.bytes());
  Bytes done = 0;
  const auto progress = [&](Bytes bytes) {
    watcher.Report(done += bytes);
    return watcher.cancelled() ? absl::CancelledError(store_dir + ": verifying was interrupted") : absl::OkStatus();
  };
  for (const StoredFile& file : manifest.files) {
    const std::string path = store_dir + "/" + file.name;
    LIME_ASSIGN_OR_RETURN(const StoredFile found, reader.Hash(path, 0, file, progress));
    const bool is_bundles =
        manifest.bundles && std::ranges::find(*manifest.bundles, file.name, &StoredBundles::file) != manifest.bundles->end();
    if (is_bundles && found != file) LIME_RETURN_IF_ERROR(CheckNeurons(store_dir, file.name));
    LIME_RETURN_IF_ERROR(CheckWhole(found, file, path));
  }
  watcher.Finish();
  return VerifyReport{.layers = manifest.layers,
                      .files = static_cast<int64_t>(manifest.files.size()),
                      .bytes = manifest.bytes(),
                      .bundles = SummaryOf(manifest)};
}

}  // namespace lime
