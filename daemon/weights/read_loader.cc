#include <algorithm>
#include <atomic>
#include <cstring>
#include <limits>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "daemon/machine/block_reader.h"
#include "daemon/machine/huge_buffer.h"
#include "daemon/machine/page_cache.h"
#include "daemon/weights/load_meter.h"
#include "daemon/weights/loader.h"
#include "planner/base/check.h"

namespace lime {
namespace {

constexpr Bytes kMaxTensorGap = 256 * kKiB;  // read across smaller gaps between tensors
// Regions of the buffer begin on it, so direct reads are aligned to it.
constexpr Bytes kPageBytes = 4 * kKiB;
constexpr Bytes kTargetAlignment = 64;  // of tensors that slid down
constexpr Bytes kRunBytes = 8 * kMiB;   // granularity of the choice between page cache and disk
constexpr int kCopyThreads = 2;
constexpr int kPrefaultThreads = 2;

// An extent and its place in the buffer: byte `o` of the file goes to
// buffer + region + (o - begin).
struct PlacedExtent {
  TensorExtent tensors;
  int64_t begin = 0;  // file offset, rounded down to a page
  Bytes region = 0;   // buffer offset of `begin`
  // Some tensor must slide down to its alignment, into the slack before the region.
  bool misaligned = false;
};

bool AnyMisaligned(const std::vector<WantedTensor>& wanted, const TensorExtent& tensors) {
  for (size_t i = tensors.first; i < tensors.last; ++i) {
    if (wanted[i].at.offset % ElementBytes(wanted[i].dtype) != 0) return true;
  }
  return false;
}

// Lays the extents out one after the other; returns the bytes of the buffer.
Bytes PlaceExtents(const std::vector<WantedTensor>& wanted, std::vector<PlacedExtent>& placements) {
  Bytes end = 0;
  for (TensorExtent& tensors : JoinExtents(wanted, kMaxTensorGap)) {
    PlacedExtent placement{.tensors = tensors, .begin = tensors.extent.offset / kPageBytes * kPageBytes};
    placement.misaligned = AnyMisaligned(wanted, tensors);
    if (placement.misaligned) end += RoundUp(static_cast<Bytes>(tensors.last - tensors.first) * kTargetAlignment, kPageBytes);
    placement.region = end;
    end += RoundUp(tensors.extent.offset + tensors.extent.bytes - placement.begin, kPageBytes);
    placements.push_back(placement);
  }
  return end;
}

// Slides the tensors of an extent down in place, in ascending order, each to the next multiple of
// 64. So memory is never doubled.
void SlideDown(const std::vector<WantedTensor>& wanted, const PlacedExtent& placement, std::byte* buffer,
               std::vector<const std::byte*>& data) {
  const TensorExtent& tensors = placement.tensors;
  std::byte* target = buffer + placement.region - static_cast<Bytes>(tensors.last - tensors.first) * kTargetAlignment;
  for (size_t i = tensors.first; i < tensors.last; ++i) {
    LIME_CHECK_LE(static_cast<const void*>(target), static_cast<const void*>(data[i]));
    std::memmove(target, data[i], static_cast<size_t>(wanted[i].at.bytes));
    data[i] = target;
    target += RoundUp(wanted[i].at.bytes, kTargetAlignment);
  }
}

class ReadLoader : public Loader {
 public:
  ReadLoader(std::unique_ptr<BlockReader> disk, std::unique_ptr<BlockReader> cache, std::vector<CheckpointFile> files, int queue_depth)
      : disk_(std::move(disk)), cache_(std::move(cache)), files_(std::move(files)), queue_depth_(queue_depth) {}

  std::string Describe() const override {
    return absl::StrCat(disk_->device().Describe(), ", ", queue_depth_, " in flight", cache_ ? ", cached parts copied from memory" : "");
  }

  SteadyReads steady() const override { return meter_.steady(); }

  absl::StatusOr<LoadedTensors> Load(const std::vector<WantedTensor>& wanted, const LoadOptions& options) override {
    std::vector<PlacedExtent> placements;
    const Bytes bytes = PlaceExtents(wanted, placements);
    LIME_ASSIGN_OR_RETURN(HugeBuffer buffer, HugeBuffer::Allocate(bytes));
    auto storage = std::make_shared<HugeBuffer>(std::move(buffer));
    LIME_RETURN_IF_ERROR(ReadMetered(placements, *storage, options));

    std::vector<const std::byte*> data;
    for (const PlacedExtent& placement : placements) {
      for (size_t i = placement.tensors.first; i < placement.tensors.last; ++i) {
        data.push_back(storage->data() + placement.region + (wanted[i].at.offset - placement.begin));
      }
      if (placement.misaligned) SlideDown(wanted, placement, storage->data(), data);
    }
    return LoadedTensors{std::move(data), std::move(storage)};
  }

 private:
  // Measures the disk. Loads that read from the page cache do not count, since they say nothing
  // about the disk.
  absl::Status ReadMetered(const std::vector<PlacedExtent>& placements, HugeBuffer& buffer, const LoadOptions& options) {
    const absl::Time begin = absl::Now();
    const Bytes disk_before = disk_->bytes_read(), cache_before = cache_ ? cache_->bytes_read() : 0;
    std::atomic<int64_t> present_ns = std::numeric_limits<int64_t>::max();
    const Prefaulting present(buffer, kPrefaultThreads, [&present_ns] { present_ns = absl::GetCurrentTimeNanos(); });
    LIME_RETURN_IF_ERROR(ReadAll(placements, buffer.data(), options));
    const absl::Time end = absl::Now();
    if (cache_ && cache_->bytes_read() > cache_before) return absl::OkStatus();
    const double present_seconds = static_cast<double>(absl::ToUnixNanos(end) - present_ns.load()) / 1e9;
    meter_.Add(disk_->bytes_read() - disk_before, absl::ToDoubleSeconds(end - begin), std::max(0.0, present_seconds));
    return absl::OkStatus();
  }

  absl::Status ReadAll(const std::vector<PlacedExtent>& placements, std::byte* buffer, const LoadOptions& options) {
    Bytes total = 0;
    for (const PlacedExtent& placement : placements) total += placement.tensors.extent.bytes;
    LoadWatcher watcher(options, total);
    const Bytes before = BytesRead();
    AwaitedReads reads;
    for (const PlacedExtent& placement : placements) StartReads(placement, buffer, reads);
    for (bool cancelled = false; !reads.Await(LoadWatcher::kInterval); watcher.Report(BytesRead() - before)) {
      if (cancelled || !watcher.cancelled()) continue;
      cancelled = true;
      disk_->Cancel();
      if (cache_) cache_->Cancel();
    }
    LIME_RETURN_IF_ERROR(reads.Await());
    watcher.Finish();
    return absl::OkStatus();
  }

  // Splits an extent into runs that are in the page cache and runs that are not, and starts each
  // with its reader.
  void StartReads(const PlacedExtent& placement, std::byte* buffer, AwaitedReads& reads) {
    const Extent& extent = placement.tensors.extent;
    const CheckpointFile& file = files_[static_cast<size_t>(extent.file)];
    std::optional<PageCacheView> view;
    if (cache_) {
      absl::StatusOr<FileDescriptor> descriptor = OpenForReading(file.path);
      if (descriptor.ok()) view.emplace(*descriptor, file.bytes);
    }
    const int64_t end = extent.offset + extent.bytes;
    for (int64_t at = extent.offset; at < end;) {
      const auto cached = [&](int64_t from, int64_t to) { return view && view->Cached(from, to - from); };
      int64_t to = std::min(end, at / kRunBytes * kRunBytes + kRunBytes);
      const bool from_cache = cached(at, to);
      while (to < end && cached(to, std::min(end, to + kRunBytes)) == from_cache) to = std::min(end, to + kRunBytes);
      BlockReader& reader = from_cache ? *cache_ : *disk_;
      const Extent run{extent.file, at, to - at};
      std::byte* destination = buffer + placement.region + (at - placement.begin);
      reader.StartRead(run, destination - reader.BufferOffset(run), reads.Add());
      at = to;
    }
  }

  Bytes BytesRead() const { return disk_->bytes_read() + (cache_ ? cache_->bytes_read() : 0); }

  const std::unique_ptr<BlockReader> disk_;
  const std::unique_ptr<BlockReader> cache_;  // null: the page cache is not used
  const std::vector<CheckpointFile> files_;
  const int queue_depth_;
  LoadMeter meter_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Loader>> MakeReadLoader(const std::vector<CheckpointFile>& files, const ReadLoaderOptions& options) {
  std::vector<std::string> paths(files.size());
  std::ranges::transform(files, paths.begin(), &CheckpointFile::path);
  const BlockReader::Options reader_options{.read_bytes = options.read_bytes};
  LIME_ASSIGN_OR_RETURN(auto disk, OpenBlockDevice(paths, {.channels = options.queue_depth, .direct = true, .io_uring = options.io_uring}));
  std::unique_ptr<BlockReader> cache_reader;
  if (options.use_page_cache) {
    LIME_ASSIGN_OR_RETURN(auto cache, OpenBlockDevice(paths, {.channels = kCopyThreads, .direct = false, .io_uring = false}));
    cache_reader = std::make_unique<BlockReader>(std::move(cache), reader_options);
  }
  return std::unique_ptr<Loader>(std::make_unique<ReadLoader>(std::make_unique<BlockReader>(std::move(disk), reader_options),
                                                              std::move(cache_reader), files, options.queue_depth));
}

}  // namespace lime
