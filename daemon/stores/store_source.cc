#include "daemon/stores/store_source.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/formats/block_store_hash.h"
#include "daemon/stores/weights_digest.h"
#include "planner/base/check.h"

namespace lime {
namespace {

constexpr Bytes kReadBytes = 8 * kMiB;

}  // namespace

StoreSource::StoreSource(Checkpoint checkpoint, ModelSpec spec)
    : checkpoint_(std::move(checkpoint)), spec_(std::move(spec)), layouts_(LayOutStore(checkpoint_, spec_)) {
  for (const StoreFileLayout& layout : layouts_) {
    std::vector<int64_t>& begins = begins_.emplace_back(1, static_cast<int64_t>(layout.header.size()));
    for (const StoreTensor& tensor : layout.tensors) begins.push_back(begins.back() + tensor.bytes);
  }
}

absl::StatusOr<std::unique_ptr<StoreSource>> StoreSource::Open(const std::string& model_dir, const LoadOptions& watch) {
  LIME_ASSIGN_OR_RETURN(Checkpoint checkpoint, Checkpoint::Open(model_dir));
  LIME_ASSIGN_OR_RETURN(ModelSpec spec, checkpoint.BuildModelSpec());
  std::unique_ptr<StoreSource> source(new StoreSource(std::move(checkpoint), std::move(spec)));
  LIME_RETURN_IF_ERROR(source->OpenFiles());
  LIME_RETURN_IF_ERROR(source->checkpoint_.is_block_store() ? source->ReadManifest() : source->MakeManifest(watch));
  return source;
}

absl::Status StoreSource::OpenFiles() {
  for (const CheckpointFile& file : checkpoint_.files()) {
    LIME_ASSIGN_OR_RETURN(FileDescriptor opened, OpenForReading(file.path));
    files_.push_back(std::move(opened));
  }
  return absl::OkStatus();
}

absl::Status StoreSource::ReadManifest() {
  LIME_ASSIGN_OR_RETURN(StoreManifest found, ReadStoreManifest(checkpoint_.dir()));
  manifest_ = {.source_xxh3 = found.source_xxh3, .layers = found.layers};
  for (const StoreFileLayout& layout : layouts_) {
    const auto file = std::ranges::find(found.files, layout.name, &StoredFile::name);
    if (file == found.files.end() || !SameShape(*file, layout)) {
      return Invalid(checkpoint_.dir(), "/", layout.name, ": has another layout than this program writes; prepare the model again");
    }
    manifest_.files.push_back(std::move(*file));
  }
  return absl::OkStatus();
}

absl::Status StoreSource::MakeManifest(const LoadOptions& watch) {
  manifest_.layers = spec_.config.num_layers();
  LIME_ASSIGN_OR_RETURN(manifest_.source_xxh3, DigestTensors(checkpoint_));
  Bytes total = 0, done = 0;
  for (const StoreFileLayout& layout : layouts_) total += layout.bytes;
  LoadWatcher watcher(watch, total);
  std::vector<std::byte> buffer(static_cast<size_t>(kReadBytes));
  for (size_t i = 0; i < layouts_.size(); ++i) {
    FileHashes hashes(layouts_[i]);
    for (int64_t at = 0; at < layouts_[i].bytes; at += kReadBytes) {
      if (watcher.cancelled()) return absl::CancelledError(absl::StrCat(checkpoint_.dir(), ": reading its checksums was interrupted"));
      const auto part = std::span(buffer).first(static_cast<size_t>(std::min(kReadBytes, layouts_[i].bytes - at)));
      LIME_RETURN_IF_ERROR(Read(static_cast<int32_t>(i), at, part));
      hashes.Add(part);
      watcher.Report(done += static_cast<Bytes>(part.size()));
    }
    manifest_.files.push_back(hashes.Finish(layouts_[i].name));
  }
  watcher.Finish();
  return absl::OkStatus();
}

StoreOffer StoreSource::OfferOf(std::vector<BlockId> blocks, bool check) const {
  StoreOffer offer{.model = std::filesystem::path(checkpoint_.dir() + "/").parent_path().filename().string(),
                   .manifest = manifest_,
                   .config_json = checkpoint_.config_json(),
                   .blocks = std::move(blocks),
                   .check = check};
  for (const StoreFileLayout& layout : layouts_) offer.headers.push_back(layout.header);
  return offer;
}

absl::Status StoreSource::Read(int32_t file, int64_t offset, std::span<std::byte> out) const {
  const StoreFileLayout& layout = layouts_[static_cast<size_t>(file)];
  const std::vector<int64_t>& begins = begins_[static_cast<size_t>(file)];
  LIME_CHECK(offset >= 0 && offset + static_cast<int64_t>(out.size()) <= layout.bytes) << layout.name << " at " << offset;
  if (const auto header = static_cast<int64_t>(layout.header.size()); offset < header) {
    const size_t part = std::min(out.size(), static_cast<size_t>(header - offset));
    std::memcpy(out.data(), layout.header.data() + offset, part);
    out = out.subspan(part);
    offset = offset + static_cast<int64_t>(part);
  }
  while (!out.empty()) {
    const size_t tensor = static_cast<size_t>(std::ranges::upper_bound(begins, offset) - begins.begin()) - 1;
    const size_t part = std::min(out.size(), static_cast<size_t>(begins[tensor + 1] - offset));
    LIME_RETURN_IF_ERROR(ReadTensor(layout.tensors[tensor], offset - begins[tensor], out.first(part)));
    out = out.subspan(part);
    offset += static_cast<int64_t>(part);
  }
  return absl::OkStatus();
}

absl::Status StoreSource::ReadTensor(const StoreTensor& tensor, int64_t begin, std::span<std::byte> out) const {
  if (!tensor.source) {
    std::ranges::fill(out, std::byte{0});
    return absl::OkStatus();
  }
  const auto file = static_cast<size_t>(tensor.source->file);
  return ReadExactly(files_[file], checkpoint_.files()[file].path, tensor.source->offset + begin, out);
}

}  // namespace lime
