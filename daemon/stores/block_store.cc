#include "daemon/stores/block_store.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <filesystem>
#include <functional>
#include <optional>
#include <span>

#include "absl/strings/str_cat.h"
#include "daemon/formats/block_store_manifest.h"
#include "daemon/formats/held_blocks.h"
#include "daemon/stores/block_store_layout.h"
#include "daemon/stores/bundle_writer.h"
#include "daemon/stores/output_file.h"
#include "daemon/stores/source_reader.h"
#include "daemon/stores/weights_digest.h"
#include "daemon/weights/bundled_mlp.h"
#include "daemon/weights/checkpoint.h"
#include "daemon/weights/model_folder.h"
#include "nlohmann/json.hpp"
#include "planner/base/check.h"
#include "planner/base/strings.h"

namespace lime {
namespace {

namespace fs = std::filesystem;

constexpr char kIndexName[] = "model.safetensors.index.json", kConfigName[] = "config.json";

struct FileRange {
  int64_t begin = 0;
  Bytes bytes = 0;  // 0 or less: the file ends before the tensor
};

// Whether every sample of `file` in `range` differs from the tensor `source`. Samples of zeros do
// not count; if all are zeros, false.
bool IsOther(const FileDescriptor& file, const std::string& path, FileRange range, const TensorLocation& source, SourceReader& reader) {
  constexpr Bytes kSample = 64;
  constexpr int64_t kSamples = 8;
  std::array<std::byte, kSample> there{}, expected{};
  bool other = false;
  for (int64_t i = 0; i < kSamples; ++i) {
    const auto bytes = static_cast<size_t>(std::clamp<Bytes>(range.bytes, 0, kSample));
    const int64_t at = (range.bytes - static_cast<Bytes>(bytes)) * i / (kSamples - 1);
    const std::span<std::byte> have = std::span(there).first(bytes), want = std::span(expected).first(bytes);
    if (!ReadExactly(file, path, range.begin + at, have).ok() || !reader.Read(source, at, want).ok()) return false;
    if (std::ranges::all_of(have, [](std::byte value) { return value == std::byte{0}; })) continue;
    if (std::ranges::equal(have, want)) return false;
    other = true;
  }
  return other;
}

// What `found` says of the file that would be written, if the file has its size; else null.
template <typename Layout>
const StoredFile* FindMatching(const StoreManifest& found, const Layout& layout, const std::string& path) {
  const auto at = std::ranges::find(found.files, layout.name, &StoredFile::name);
  return at != found.files.end() && SameShape(*at, layout) && HasBytes(path, at->bytes) ? &*at : nullptr;
}

// Whether the file begins with `header`. A file shorter than the header must be a prefix of it.
bool BeginsAs(std::string_view header, const std::string& path) {
  const absl::StatusOr<FileDescriptor> file = OpenForReading(path);
  if (!file.ok()) return false;
  const absl::StatusOr<Bytes> bytes = FileBytes(*file, path);
  if (!bytes.ok()) return false;
  std::string begin(std::min(header.size(), static_cast<size_t>(*bytes)), '\0');
  return ReadExactly(*file, path, 0, std::as_writable_bytes(std::span(begin))).ok() && header.starts_with(begin);
}

// The copier of a layer; null if it gets no copy.
absl::StatusOr<std::shared_ptr<const RowCopier>> CopierOf(const ModelSpec& spec, const std::string& dir, const BundledMlp& mlp,
                                                          const PrepareOptions& options) {
  const auto found = options.decider_copies.find(mlp.layer);
  if (found == options.decider_copies.end() || found->second == nullptr) return nullptr;
  const RowCopier& copier = *found->second;
  if (mlp.packed) return Invalid(dir, ": the weights of layer ", mlp.layer, " are packed, and deciders of packed weights have no copy");
  if (copier.cols() != spec.config.hidden_size || copier.directions() < 1)
    return Invalid(dir, ": the copy of the decider of layer ", mlp.layer, " has ", copier.cols(), " columns and ", copier.directions(),
                   " directions, need ", spec.config.hidden_size, " and at least 1; calibrate this model");
  return found->second;
}

absl::StatusOr<std::vector<BundleFileLayout>> LayOutAllBundles(const ModelSpec& spec, const std::string& dir,
                                                               const PrepareOptions& options) {
  LIME_ASSIGN_OR_RETURN(const std::vector<BundledMlp> mlps, BundledMlps(spec, dir));
  const std::map<int32_t, std::vector<int32_t>>& places = options.bundle_places;
  std::vector<BundleFileLayout> layouts;
  for (const BundledMlp& mlp : mlps) {
    const auto found = places.find(mlp.layer);
    if (found != places.end() && std::ssize(found->second) != mlp.shape.neurons)
      return Invalid(dir, ": layer ", mlp.layer, " has ", mlp.shape.neurons, " neurons, but places for ", found->second.size(),
                     " are given");
    LIME_ASSIGN_OR_RETURN(std::shared_ptr<const RowCopier> copier, CopierOf(spec, dir, mlp, options));
    layouts.push_back(LayOutBundles(mlp, found == places.end() ? std::vector<int32_t>() : found->second, std::move(copier)));
  }
  return layouts;
}

class Preparer {
 public:
  // `bundles`: the files that are wanted; nullopt: as the store has them already.
  Preparer(const Checkpoint& source, const ModelSpec& spec, std::string dir, std::optional<std::vector<BundleFileLayout>> bundles,
           const PrepareOptions& options)
      : source_(source),
        spec_(spec),
        dir_(std::move(dir)),
        options_(options),
        disk_(options.disk != nullptr ? *options.disk : real_disk_),
        layouts_(LayOutStore(source, spec)) {
    manifest_.layers = spec.config.num_layers();
    if (bundles) WantBundles(*std::move(bundles));
  }

  // If nothing is finished, there is nothing to continue, so the journal is removed too.
  absl::StatusOr<PrepareReport> Run() {
    absl::StatusOr<PrepareReport> report = Write();
    const bool nothing_finished = was_whole_ ? manifest_.bundles->empty() : !HasWeights();
    if (!report.ok() && begun_ && nothing_finished) disk_.Remove(Path(kStoreJournalName)).IgnoreError();
    return report;
  }

 private:
  // Files of earlier calls count, also those that are not in their journal: without the journal,
  // the next call would take them for somebody else's.
  bool HasWeights() const {
    return std::ranges::any_of(layouts_, [this](const StoreFileLayout& layout) { return FileExists(Path(layout.name)); });
  }

  void WantBundles(std::vector<BundleFileLayout> layouts) {
    bundle_layouts_ = std::move(layouts);
    manifest_.bundles.emplace();
  }

  absl::StatusOr<PrepareReport> Write() {
    LIME_ASSIGN_OR_RETURN(manifest_.source_xxh3, DigestTensors(source_));
    LIME_ASSIGN_OR_RETURN(side_files_, SideFiles(source_.dir()));
    LIME_RETURN_IF_ERROR(disk_.MakeFolder(dir_));
    LIME_RETURN_IF_ERROR(Resume());
    if (report_.was_complete) return Report();
    LIME_RETURN_IF_ERROR(CheckFreeSpace());
    LIME_RETURN_IF_ERROR(WriteWeights());
    LIME_RETURN_IF_ERROR(WriteSideFiles());
    LIME_RETURN_IF_ERROR(WriteStoreText(disk_, Path(kStoreManifestName), StoreManifestText(manifest_)).status());
    LIME_RETURN_IF_ERROR(disk_.Remove(Path(kStoreJournalName)));
    return Report();
  }

  std::string Path(std::string_view name) const { return absl::StrCat(dir_, "/", Text(name)); }

  PrepareReport Report() const {
    PrepareReport report = report_;
    report.layers = manifest_.layers;
    report.files = static_cast<int64_t>(manifest_.files.size());
    report.bytes = manifest_.bytes();
    report.bundles = SummaryOf(manifest_);
    return report;
  }

  // Takes over finished files and removes unfinished ones of an interrupted call.
  absl::Status Resume() {
    const bool complete = FileExists(Path(kStoreManifestName)), begun = FileExists(Path(kStoreJournalName));
    if (!complete && !begun) {
      LIME_RETURN_IF_ERROR(CheckEmpty());
      return WriteJournal();
    }
    const std::string path = Path(complete ? kStoreManifestName : kStoreJournalName);
    LIME_ASSIGN_OR_RETURN(const std::string text, ReadTextFile(path, kMaxStoreManifestBytes));
    LIME_ASSIGN_OR_RETURN(StoreManifest found, ParseStoreManifest(text, path, complete));
    if (found.source_xxh3 != manifest_.source_xxh3 || found.layers != manifest_.layers) {
      return Invalid(dir_, ": is the block store of another model than ", source_.dir(), "; give another folder, or remove this one");
    }
    // A whole store that gets bundles stays one until it has them: then the journal says which it has.
    const std::optional<StoreManifest> journal = complete && begun ? ReadJournal() : std::nullopt;
    if ((found.bundles || (journal && journal->bundles)) && !manifest_.bundles) {
      LIME_ASSIGN_OR_RETURN(std::vector<BundleFileLayout> layouts, LayOutAllBundles(spec_, source_.dir(), options_));
      WantBundles(std::move(layouts));
    }
    const bool all_there = complete && AllThere(found) && HasCopies(found);
    if (all_there && found.bundles.has_value() == manifest_.bundles.has_value()) {
      LIME_RETURN_IF_ERROR(RemovePartialFiles());
      manifest_ = std::move(found);
      report_.was_complete = true;
      return disk_.Remove(Path(kStoreJournalName));
    }
    KeepMatching(found);
    if (all_there && journal) KeepBundles(*journal);
    report_.kept_files = static_cast<int64_t>(manifest_.files.size());
    LIME_RETURN_IF_ERROR(CheckReplaced(found));
    LIME_RETURN_IF_ERROR(RemovePartialFiles());
    was_whole_ = all_there;
    LIME_RETURN_IF_ERROR(WriteJournal());
    return all_there ? absl::OkStatus() : disk_.Remove(Path(kStoreManifestName));
  }

  // The journal beside a manifest; nothing if it cannot be read.
  std::optional<StoreManifest> ReadJournal() const {
    const std::string path = Path(kStoreJournalName);
    const absl::StatusOr<std::string> text = ReadTextFile(path, kMaxStoreManifestBytes);
    if (!text.ok()) return std::nullopt;
    absl::StatusOr<StoreManifest> journal = ParseStoreManifest(*text, path, /*complete=*/false);
    const bool is_ours = journal.ok() && journal->source_xxh3 == manifest_.source_xxh3;
    return is_ours ? std::optional(*std::move(journal)) : std::nullopt;
  }

  // Refuses a folder with other files: it would become a mixed store and lose some of them.
  absl::Status CheckEmpty() const {
    return CheckFolder("block store", [](const std::string& name) { return name == absl::StrCat(kStoreJournalName, ".partial"); });
  }

  // Checks the files of an existing store that would be written again. A file that is neither as
  // recorded in `found` nor as this call would write it comes from somebody else.
  absl::Status CheckReplaced(const StoreManifest& found) const {
    const std::vector<std::string> names = NamesToWrite();
    return CheckFolder("block store as LIME wrote it", [&](const std::string& name) {
      return std::ranges::find(names, name) == names.end() || name.starts_with(kStoreFilePrefix) || IsOurs(name, found);
    });
  }

  absl::Status CheckFolder(const std::string& what, const std::function<bool(const std::string&)>& is_ours) const {
    return CheckOutputFolder(dir_, {.what = what, .is_ours = is_ours, .names = NamesToWrite(), .overwrite = options_.overwrite});
  }

  // Weight files are ours if they are kept, or if they begin with the right header and hold no
  // other model: a damaged file is cut off or too long. Other files are compared by their text.
  bool IsOurs(const std::string& name, const StoreManifest& found) const {
    const auto layout = std::ranges::find(layouts_, name, &StoreFileLayout::name);
    if (layout != layouts_.end()) return IsStored(*layout) || (BeginsAs(layout->header, Path(name)) && !HoldsOtherTensor(*layout));
    const auto bundles = std::ranges::find(bundle_layouts_, name, &BundleFileLayout::name);
    if (bundles != bundle_layouts_.end())
      return IsStored(*bundles) || (BeginsAs(bundles->header_begin, Path(name)) && !HoldsOtherBundles(*bundles));
    const absl::StatusOr<std::string> text = ReadTextFile(Path(name), kMaxSideFileBytes);
    if (!text.ok()) return false;
    const auto stored = std::ranges::find(found.files, name, &StoredFile::name);
    if (stored != found.files.end() && stored->xxh3 == ManifestTextHash(*text)) return true;
    const absl::StatusOr<std::string> to_write = SideText(name);
    return to_write.ok() && *to_write == *text;
  }

  // Whether a tensor of the file belongs to another model of the same shapes: then it differs from
  // the source at every sample. In a damaged file of ours only part of a tensor differs, is zero or
  // is missing.
  bool HoldsOtherTensor(const StoreFileLayout& layout) const {
    const std::string path = Path(layout.name);
    const absl::StatusOr<FileDescriptor> file = OpenForReading(path);
    const absl::StatusOr<Bytes> there = file.ok() ? FileBytes(*file, path) : file.status();
    if (!there.ok()) return false;
    SourceReader reader(source_);
    auto begin = static_cast<int64_t>(layout.header.size());
    for (const StoreTensor& tensor : layout.tensors) {
      if (tensor.source && IsOther(*file, path, {begin, std::min(tensor.bytes, *there - begin)}, *tensor.source, reader)) return true;
      begin += tensor.bytes;
    }
    return false;
  }

  // The same of bundles: whether no sampled row of a neuron is that of the source.
  bool HoldsOtherBundles(const BundleFileLayout& layout) const {
    const std::string path = Path(layout.name);
    const absl::StatusOr<FileDescriptor> file = OpenForReading(path);
    const absl::StatusOr<Bytes> there = file.ok() ? FileBytes(*file, path) : file.status();
    if (!there.ok()) return false;
    const BundleLayout& record = layout.mlp.shape.layout;
    const TensorLocation rows = source_.location(*layout.mlp.rows().front());
    SourceReader reader(source_);
    const std::vector<int32_t> order = NeuronsInOrder(layout);
    for (const int64_t place : {int64_t{0}, std::ssize(order) / 2, std::ssize(order) - 1}) {
      const int64_t begin = static_cast<int64_t>(layout.header.size()) + place * record.stride;
      const auto is_other = [&](int64_t neuron) {
        const TensorLocation row{rows.file, rows.offset + neuron * record.part_bytes, record.part_bytes};
        return IsOther(*file, path, {begin, std::min(record.part_bytes, *there - begin)}, row, reader);
      };
      // Each file has an order of its own, which an earlier call chose.
      if (is_other(order[static_cast<size_t>(place)]) && std::ranges::all_of(order, is_other)) return true;
    }
    return false;
  }

  std::vector<std::string> NamesToWrite() const {
    std::vector<std::string> names = side_files_;
    for (const StoreFileLayout& layout : layouts_) names.push_back(layout.name);
    for (const BundleFileLayout& layout : bundle_layouts_) names.push_back(layout.name);
    names.insert(names.end(), {kConfigName, kIndexName, kStoreManifestName, kStoreJournalName});
    return names;
  }

  absl::Status RemovePartialFiles() {
    for (const std::string& name : NamesToWrite()) {
      const std::string partial = Path(name) + ".partial";
      if (FileExists(partial)) LIME_RETURN_IF_ERROR(disk_.Remove(partial));
    }
    return absl::OkStatus();
  }

  // Compares sizes only, which finds truncated and missing files. `--verify` finds all other
  // damage.
  bool AllThere(const StoreManifest& manifest) const {
    return std::ranges::all_of(manifest.files, [this](const StoredFile& file) { return HasBytes(Path(file.name), file.bytes); });
  }

  // Whether files of bundles that are to have a copy of the decider have it.
  bool HasCopies(const StoreManifest& found) const {
    return std::ranges::all_of(bundle_layouts_, [&](const BundleFileLayout& layout) {
      const auto file = std::ranges::find(found.files, layout.name, &StoredFile::name);
      return layout.copier == nullptr || file == found.files.end() || SameShape(*file, layout);
    });
  }

  void KeepMatching(const StoreManifest& found) {
    for (const StoreFileLayout& layout : layouts_) {
      if (const StoredFile* file = FindMatching(found, layout, Path(layout.name))) manifest_.files.push_back(*file);
    }
    KeepBundles(found);
  }

  // Also the layers of which a call found that they can have no bundles.
  void KeepBundles(const StoreManifest& found) {
    if (!found.bundles) return;
    for (const BundleFileLayout& layout : bundle_layouts_) {
      const auto bundles = std::ranges::find(*found.bundles, layout.mlp.layer, &StoredBundles::layer);
      if (bundles == found.bundles->end()) continue;
      const StoredFile* file = FindMatching(found, layout, Path(layout.name));
      if (bundles->why_not || (file != nullptr && bundles->file == layout.name)) AddBundles(*bundles, file);
    }
  }

  void AddBundles(const StoredBundles& bundles, const StoredFile* file) {
    if (!bundles.why_not) manifest_.files.push_back(*file);
    manifest_.bundles->push_back(bundles);
  }

  bool IsStored(const StoredFile& layout) const {
    return std::ranges::find(manifest_.files, layout.name, &StoredFile::name) != manifest_.files.end();
  }

  // Whether the layer has bundles or is known to have none.
  bool IsDone(const BundleFileLayout& layout) const {
    return std::ranges::find(*manifest_.bundles, layout.mlp.layer, &StoredBundles::layer) != manifest_.bundles->end();
  }

  Bytes BytesToWrite() const {
    Bytes bytes = 0;
    for (const StoreFileLayout& layout : layouts_) bytes += IsStored(layout) ? 0 : layout.bytes;
    for (const BundleFileLayout& layout : bundle_layouts_) bytes += IsDone(layout) ? 0 : layout.bytes;
    return bytes;
  }

  // Fails before hours of copying if the disk cannot hold the store. Side files and rounding to the
  // file system's blocks are not counted.
  absl::Status CheckFreeSpace() {
    const Bytes needed = BytesToWrite();
    LIME_ASSIGN_OR_RETURN(const Bytes free, disk_.FreeBytes(dir_));
    return needed > free ? DiskFull(dir_, needed, free) : absl::OkStatus();
  }

  absl::Status WriteJournal() {
    begun_ = true;
    return WriteStoreText(disk_, Path(kStoreJournalName), StoreManifestText(manifest_)).status();
  }

  absl::Status WriteWeights() {
    LoadWatcher watcher(options_.watch, BytesToWrite());
    SourceReader reader(source_);
    buffer_.resize(static_cast<size_t>(options_.buffer_bytes));
    for (const StoreFileLayout& layout : layouts_) {
      if (IsStored(layout)) continue;
      LIME_ASSIGN_OR_RETURN(StoredFile written, WriteLayout(layout, reader, watcher));
      manifest_.files.push_back(std::move(written));
      LIME_RETURN_IF_ERROR(WriteJournal());
    }
    for (const BundleFileLayout& layout : bundle_layouts_) {
      if (IsDone(layout)) continue;
      LIME_RETURN_IF_ERROR(WriteBundleFile(layout, reader, watcher));
      LIME_RETURN_IF_ERROR(WriteJournal());
    }
    // Sort, so that the order does not depend on which files were written again.
    std::ranges::sort(manifest_.files, {}, &StoredFile::name);
    watcher.Finish();
    return absl::OkStatus();
  }

  absl::StatusOr<StoredFile> WriteLayout(const StoreFileLayout& layout, SourceReader& reader, LoadWatcher& watcher) {
    LIME_ASSIGN_OR_RETURN(StoreFileWriter writer, StoreFileWriter::Create(disk_, Path(layout.name), layout));
    filled_ = 0;
    const std::string& header = layout.header;
    LIME_RETURN_IF_ERROR(Fill(static_cast<Bytes>(header.size()), writer, watcher, [&](int64_t begin, std::span<std::byte> out) {
      std::memcpy(out.data(), header.data() + begin, out.size());
      return absl::OkStatus();
    }));
    for (const StoreTensor& tensor : layout.tensors) {
      LIME_RETURN_IF_ERROR(Fill(tensor.bytes, writer, watcher, [&](int64_t begin, std::span<std::byte> out) {
        if (tensor.source) return reader.Read(*tensor.source, begin, out);
        std::ranges::fill(out, std::byte{0});
        return absl::OkStatus();
      }));
    }
    LIME_RETURN_IF_ERROR(Flush(writer, watcher));
    return writer.Finish();
  }

  // Copies `bytes` bytes, which `get` returns part by part, through the buffer, so that the disk
  // gets few and long writes.
  template <typename Get>
  absl::Status Fill(Bytes bytes, StoreFileWriter& writer, LoadWatcher& watcher, const Get& get) {
    for (int64_t begin = 0; begin < bytes;) {
      const auto part = static_cast<size_t>(std::min<int64_t>(bytes - begin, static_cast<int64_t>(buffer_.size() - filled_)));
      LIME_RETURN_IF_ERROR(get(begin, std::span(buffer_).subspan(filled_, part)));
      begin += static_cast<int64_t>(part);
      filled_ += part;
      if (filled_ == buffer_.size()) LIME_RETURN_IF_ERROR(Flush(writer, watcher));
    }
    return absl::OkStatus();
  }

  absl::Status Flush(StoreFileWriter& writer, LoadWatcher& watcher) {
    LIME_RETURN_IF_ERROR(CheckCancelled(watcher));
    LIME_RETURN_IF_ERROR(writer.Append(std::span(buffer_).first(filled_)));
    done_ += static_cast<Bytes>(filled_);
    filled_ = 0;
    watcher.Report(done_);
    return absl::OkStatus();
  }

  absl::Status CheckCancelled(const LoadWatcher& watcher) const {
    if (!watcher.cancelled()) return absl::OkStatus();
    if (!HasWeights()) return absl::CancelledError(absl::StrCat(dir_, ": preparing was interrupted, and its files were removed"));
    return absl::CancelledError(absl::StrCat(dir_, ": preparing was interrupted with ", manifest_.files.size(), " of ",
                                             layouts_.size() + bundle_layouts_.size(),
                                             " weight files written; run the same command to continue"));
  }

  absl::Status WriteBundleFile(const BundleFileLayout& layout, SourceReader& reader, LoadWatcher& watcher) {
    LIME_RETURN_IF_ERROR(CheckCancelled(watcher));
    const Bytes begin = done_;
    const auto progress = [&](Bytes bytes) {
      watcher.Report(done_ += bytes);
      return CheckCancelled(watcher);
    };
    LIME_ASSIGN_OR_RETURN(
        const WrittenBundles written,
        WriteBundles(source_, spec_, layout, reader, disk_, Path(layout.name),
                     {.buffer_bytes = options_.bundle_buffer_bytes, .progress = progress, .for_each = options_.for_each}));
    done_ = begin + layout.bytes;
    const bool is_first =
        written.file && std::ranges::all_of(*manifest_.bundles, [](const StoredBundles& layer) { return layer.why_not.has_value(); });
    if (is_first && options_.first_bundles) LIME_RETURN_IF_ERROR(options_.first_bundles());
    StoredBundles bundles{.layer = layout.mlp.layer, .file = written.file ? layout.name : "", .why_not = written.why_not};
    AddBundles(bundles, written.file ? &*written.file : nullptr);
    std::ranges::sort(*manifest_.bundles, {}, &StoredBundles::layer);
    return absl::OkStatus();
  }

  // Writes the files that make the folder a checkpoint for other programs too; config.json last.
  absl::Status WriteSideFiles() {
    LIME_RETURN_IF_ERROR(WriteSide(kIndexName));
    for (const std::string& name : side_files_) LIME_RETURN_IF_ERROR(WriteSide(name));
    return WriteSide(kConfigName);
  }

  absl::Status WriteSide(const std::string& name) {
    LIME_ASSIGN_OR_RETURN(const std::string text, SideText(name));
    LIME_ASSIGN_OR_RETURN(StoredFile written, WriteStoreText(disk_, Path(name), text));
    manifest_.files.push_back(std::move(written));
    return absl::OkStatus();
  }

  absl::StatusOr<std::string> SideText(const std::string& name) const {
    if (name == kIndexName) return IndexText();
    if (name == kConfigName) return source_.config_json();
    return ReadTextFile(source_.dir() + "/" + name, kMaxSideFileBytes);
  }

  std::string IndexText() const {
    std::map<std::string, std::string> weight_map;
    Bytes total = 0;
    for (const StoreFileLayout& layout : layouts_) {
      for (const StoreTensor& tensor : layout.tensors) {
        if (!tensor.source) continue;
        weight_map.emplace(tensor.tensor.name, layout.name);
        total += tensor.bytes;
      }
    }
    const nlohmann::json root = {{"metadata", {{"total_size", total}}}, {"weight_map", weight_map}};
    return root.dump(2) + "\n";
  }

  const Checkpoint& source_;
  const ModelSpec& spec_;
  const std::string dir_;
  const PrepareOptions& options_;
  StoreDisk real_disk_;
  StoreDisk& disk_;
  const std::vector<StoreFileLayout> layouts_;
  std::vector<BundleFileLayout> bundle_layouts_;  // none: the store has no bundles
  std::vector<std::string> side_files_;
  StoreManifest manifest_;  // finished files
  PrepareReport report_;
  bool begun_ = false;      // this call wrote the journal
  bool was_whole_ = false;  // only bundles were missing
  std::vector<std::byte> buffer_;
  size_t filled_ = 0;
  Bytes done_ = 0;
};

}  // namespace

std::optional<BundleSummary> SummaryOf(const StoreManifest& manifest) {
  if (!manifest.bundles) return std::nullopt;
  BundleSummary summary;
  for (const StoredBundles& bundles : *manifest.bundles) {
    if (bundles.why_not) {
      summary.without.push_back(bundles.WhyNot());
    } else {
      ++summary.layers;
      summary.bytes += std::ranges::find(manifest.files, bundles.file, &StoredFile::name)->bytes;
    }
  }
  return summary;
}

bool HasBundles(const std::string& store_dir) {
  const auto has = [&](const char* name, bool complete) {
    const std::string path = absl::StrCat(store_dir, "/", name);
    const absl::StatusOr<std::string> text = ReadTextFile(path, kMaxStoreManifestBytes);
    if (!text.ok()) return false;
    const absl::StatusOr<StoreManifest> manifest = ParseStoreManifest(*text, path, complete);
    return manifest.ok() && manifest->bundles.has_value();
  };
  return has(kStoreManifestName, /*complete=*/true) || has(kStoreJournalName, /*complete=*/false);
}

absl::StatusOr<PrepareReport> PrepareBlockStore(const std::string& source_dir, const std::string& store_dir,
                                                const PrepareOptions& options) {
  LIME_CHECK(options.buffer_bytes > 0 && options.buffer_bytes <= 64 * kMiB) << options.buffer_bytes;
  LIME_CHECK_GT(options.bundle_buffer_bytes, 0);
  LIME_ASSIGN_OR_RETURN(const Checkpoint source, Checkpoint::Open(source_dir));
  LIME_ASSIGN_OR_RETURN(const ModelSpec spec, source.BuildModelSpec());
  std::error_code ignored;
  if (fs::equivalent(source_dir, store_dir, ignored))
    return Invalid(store_dir, ": is the folder of the model itself; give another folder for the store");
  std::optional<std::vector<BundleFileLayout>> bundles;
  if (options.bundles) {
    LIME_ASSIGN_OR_RETURN(bundles, LayOutAllBundles(spec, source_dir, options));
  }
  LIME_ASSIGN_OR_RETURN(OutputFolder folder, OutputFolder::Make(store_dir, "lime prepare"));
  absl::StatusOr<PrepareReport> report = Preparer(source, spec, store_dir, std::move(bundles), options).Run();
  if (report.ok()) folder.Commit();
  return report;
}

}  // namespace lime
