#include "daemon/stores/block_store.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <filesystem>
#include <functional>
#include <span>

#include "absl/strings/str_cat.h"
#include "daemon/formats/block_store_manifest.h"
#include "daemon/formats/held_blocks.h"
#include "daemon/machine/page_cache.h"
#include "daemon/stores/block_store_layout.h"
#include "daemon/stores/output_file.h"
#include "daemon/stores/weights_digest.h"
#include "daemon/weights/checkpoint.h"
#include "daemon/weights/model_folder.h"
#include "nlohmann/json.hpp"
#include "planner/base/check.h"
#include "planner/base/strings.h"

namespace lime {
namespace {

namespace fs = std::filesystem;

constexpr char kIndexName[] = "model.safetensors.index.json", kConfigName[] = "config.json";

// Reads tensors of the source from front to back. Files that were not cached before do not stay
// cached.
class SourceReader {
 public:
  explicit SourceReader(const Checkpoint& source) : source_(source) {}
  ~SourceReader() { Close(); }

  absl::Status Read(const TensorLocation& at, int64_t begin, std::span<std::byte> out) {
    LIME_RETURN_IF_ERROR(Open(at.file));
    const int64_t offset = at.offset + begin;
    LIME_RETURN_IF_ERROR(ReadExactly(file_, source_.files()[static_cast<size_t>(at.file)].path, offset, out));
    Drop(offset, static_cast<Bytes>(out.size()));
    return absl::OkStatus();
  }

 private:
  absl::Status Open(int32_t file) {
    if (file == open_) return absl::OkStatus();
    Close();
    const CheckpointFile& next = source_.files()[static_cast<size_t>(file)];
    LIME_ASSIGN_OR_RETURN(file_, OpenForReading(next.path));
    open_ = file;
    keep_cached_ = PageCacheView(file_, next.bytes).CachedFraction(64) > 0.5;
    return absl::OkStatus();
  }
  void Close() {
    if (open_ >= 0) Drop(0, 0);
    open_ = -1;
  }
  void Drop([[maybe_unused]] int64_t offset, [[maybe_unused]] Bytes bytes) const {
#ifdef POSIX_FADV_DONTNEED
    if (!keep_cached_) ::posix_fadvise(file_.get(), offset, bytes, POSIX_FADV_DONTNEED);
#endif
  }

  const Checkpoint& source_;
  FileDescriptor file_;
  int32_t open_ = -1;
  bool keep_cached_ = false;
};

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

// Whether `stored` describes the file that would be written, and the file has its size.
bool Matches(const StoredFile& stored, const StoreFileLayout& layout, const std::string& path) {
  return SameShape(stored, layout) && HasBytes(path, stored.bytes);
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

class Preparer {
 public:
  Preparer(const Checkpoint& source, const ModelSpec& spec, std::string dir, const PrepareOptions& options)
      : source_(source),
        dir_(std::move(dir)),
        options_(options),
        disk_(options.disk != nullptr ? *options.disk : real_disk_),
        layouts_(LayOutStore(source, spec)) {
    manifest_.layers = spec.config.num_layers();
  }

  // If no weight file is there, there is nothing to continue, so the journal is removed too.
  absl::StatusOr<PrepareReport> Run() {
    absl::StatusOr<PrepareReport> report = Write();
    if (!report.ok() && begun_ && !HasWeights()) disk_.Remove(Path(kStoreJournalName)).IgnoreError();
    return report;
  }

 private:
  // Files of earlier calls count, also those that are not in their journal: without the journal,
  // the next call would take them for somebody else's.
  bool HasWeights() const {
    return std::ranges::any_of(layouts_, [this](const StoreFileLayout& layout) { return FileExists(Path(layout.name)); });
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
    if (complete && AllThere(found)) {
      LIME_RETURN_IF_ERROR(RemovePartialFiles());
      manifest_ = std::move(found);
      report_.was_complete = true;
      return disk_.Remove(Path(kStoreJournalName));
    }
    KeepMatching(found);
    LIME_RETURN_IF_ERROR(CheckReplaced(found));
    LIME_RETURN_IF_ERROR(RemovePartialFiles());
    LIME_RETURN_IF_ERROR(WriteJournal());
    return disk_.Remove(Path(kStoreManifestName));
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

  std::vector<std::string> NamesToWrite() const {
    std::vector<std::string> names = side_files_;
    for (const StoreFileLayout& layout : layouts_) names.push_back(layout.name);
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

  void KeepMatching(const StoreManifest& found) {
    for (const StoreFileLayout& layout : layouts_) {
      const auto at = std::ranges::find(found.files, layout.name, &StoredFile::name);
      if (at != found.files.end() && Matches(*at, layout, Path(layout.name))) manifest_.files.push_back(*at);
    }
    report_.kept_files = static_cast<int64_t>(manifest_.files.size());
  }

  bool IsStored(const StoreFileLayout& layout) const {
    return std::ranges::find(manifest_.files, layout.name, &StoredFile::name) != manifest_.files.end();
  }

  Bytes BytesToWrite() const {
    Bytes bytes = 0;
    for (const StoreFileLayout& layout : layouts_) bytes += IsStored(layout) ? 0 : layout.bytes;
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
    if (watcher.cancelled()) {
      if (!HasWeights()) return absl::CancelledError(absl::StrCat(dir_, ": preparing was interrupted, and its files were removed"));
      return absl::CancelledError(absl::StrCat(dir_, ": preparing was interrupted with ", manifest_.files.size(), " of ", layouts_.size(),
                                               " weight files written; run the same command to continue"));
    }
    LIME_RETURN_IF_ERROR(writer.Append(std::span(buffer_).first(filled_)));
    done_ += static_cast<Bytes>(filled_);
    filled_ = 0;
    watcher.Report(done_);
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
  const std::string dir_;
  const PrepareOptions& options_;
  StoreDisk real_disk_;
  StoreDisk& disk_;
  const std::vector<StoreFileLayout> layouts_;
  std::vector<std::string> side_files_;
  StoreManifest manifest_;  // finished files
  PrepareReport report_;
  bool begun_ = false;  // this call wrote the journal
  std::vector<std::byte> buffer_;
  size_t filled_ = 0;
  Bytes done_ = 0;
};

}  // namespace

absl::StatusOr<PrepareReport> PrepareBlockStore(const std::string& source_dir, const std::string& store_dir,
                                                const PrepareOptions& options) {
  LIME_CHECK(options.buffer_bytes > 0 && options.buffer_bytes <= 64 * kMiB) << options.buffer_bytes;
  LIME_ASSIGN_OR_RETURN(const Checkpoint source, Checkpoint::Open(source_dir));
  LIME_ASSIGN_OR_RETURN(const ModelSpec spec, source.BuildModelSpec());
  std::error_code ignored;
  if (fs::equivalent(source_dir, store_dir, ignored))
    return Invalid(store_dir, ": is the folder of the model itself; give another folder for the store");
  LIME_ASSIGN_OR_RETURN(OutputFolder folder, OutputFolder::Make(store_dir, "lime prepare"));
  absl::StatusOr<PrepareReport> report = Preparer(source, spec, store_dir, options).Run();
  if (report.ok()) folder.Commit();
  return report;
}

}  // namespace lime
