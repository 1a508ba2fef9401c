#include <algorithm>
#include <atomic>
#include <cstring>
#include <thread>

#include "absl/synchronization/mutex.h"
#include "daemon/machine/huge_buffer.h"
#include "daemon/machine/mapped_file.h"
#include "daemon/weights/loader.h"

namespace lime {
namespace {

// Bytes of one populate call. A cancelled load ends within one step.
constexpr Bytes kStepBytes = 16 * kMiB;
constexpr Bytes kCopyAlignment = 64;  // of copied tensors
// The kernel fills page tables under one lock, so more threads would only wait.
constexpr unsigned kMaxPopulateThreads = 4;

struct MappedStorage {
  std::vector<std::shared_ptr<const MappedFile>> files;
  HugeBuffer copies;  // of tensors whose offset is no multiple of their element
};

class MmapLoader : public Loader {
 public:
  MmapLoader(std::vector<std::shared_ptr<const MappedFile>> files, bool populate) : files_(std::move(files)), populate_(populate) {}

  std::string Describe() const override {
    return populate_ ? "views of the files, all pages present" : "views of the files, pages read at first use";
  }

  absl::StatusOr<LoadedTensors> Load(const std::vector<WantedTensor>& wanted, const LoadOptions& options) override {
    const std::vector<TensorExtent> extents = JoinExtents(wanted, kMiB);
    if (populate_) LIME_RETURN_IF_ERROR(Populate(extents, options));
    for (const auto& file : files_) LIME_RETURN_IF_ERROR(file->CheckNotTruncated());
    auto storage = std::make_shared<MappedStorage>(MappedStorage{.files = files_, .copies = {}});
    LIME_ASSIGN_OR_RETURN(std::vector<const std::byte*> data, Place(wanted, *storage));
    return LoadedTensors{std::move(data), std::move(storage)};
  }

 private:
  struct Step {
    int file;
    int64_t offset;
    Bytes bytes;
  };

  // Several threads process steps in file order; the calling thread reports progress.
  absl::Status Populate(const std::vector<TensorExtent>& extents, const LoadOptions& options) const {
    std::vector<Step> steps;
    Bytes total = 0;
    for (const TensorExtent& tensors : extents) {
      const Extent& extent = tensors.extent;
      for (Bytes at = 0; at < extent.bytes; at += kStepBytes) {
        steps.push_back({extent.file, extent.offset + at, std::min(kStepBytes, extent.bytes - at)});
      }
      total += extent.bytes;
    }
    LoadWatcher watcher(options, total);
    std::atomic<size_t> next = 0;
    std::atomic<Bytes> done = 0;
    absl::Mutex mutex;
    absl::Status status;
    const unsigned num_threads = std::clamp(std::thread::hardware_concurrency(), 1u, kMaxPopulateThreads);
    unsigned running = num_threads;
    const auto work = [&] {
      absl::Status mine;
      for (size_t i = next++; i < steps.size() && mine.ok(); i = next++) {
        mine = watcher.cancelled() ? absl::CancelledError("reading weights was cancelled")
                                   : files_[static_cast<size_t>(steps[i].file)]->Populate(steps[i].offset, steps[i].bytes);
        done += steps[i].bytes;
      }
      absl::MutexLock lock(&mutex);
      status.Update(mine);
      --running;
    };
    std::vector<std::thread> threads;
    for (unsigned i = 0; i < num_threads; ++i) threads.emplace_back(work);
    for (bool finished = false; !finished; watcher.Report(done)) {
      absl::MutexLock lock(&mutex);
      finished = mutex.AwaitWithTimeout(absl::Condition(
                                            +[](unsigned* count) { return *count == 0; }, &running),
                                        LoadWatcher::kInterval);
    }
    for (std::thread& thread : threads) thread.join();
    if (status.ok()) watcher.Finish();
    return status;
  }

  // Returns views of aligned tensors and copies of all others. Releases the pages of copied
  // tensors.
  absl::StatusOr<std::vector<const std::byte*>> Place(const std::vector<WantedTensor>& wanted, MappedStorage& storage) const {
    std::vector<const std::byte*> data;
    Bytes copied = 0;
    for (const WantedTensor& tensor : wanted) {
      data.push_back(files_[static_cast<size_t>(tensor.at.file)]->data() + tensor.at.offset);
      if (Misaligned(data.back(), tensor.dtype)) copied += RoundUp(tensor.at.bytes, kCopyAlignment);
    }
    if (copied == 0) return data;
    LIME_ASSIGN_OR_RETURN(storage.copies, HugeBuffer::Allocate(copied));
    std::byte* target = storage.copies.data();
    for (size_t i = 0; i < wanted.size(); ++i) {
      const TensorLocation& at = wanted[i].at;
      if (!Misaligned(data[i], wanted[i].dtype)) continue;
      std::memcpy(target, data[i], static_cast<size_t>(at.bytes));
      files_[static_cast<size_t>(at.file)]->Release(at.offset, at.bytes);
      data[i] = target;
      target += RoundUp(at.bytes, kCopyAlignment);
    }
    return data;
  }

  const std::vector<std::shared_ptr<const MappedFile>> files_;
  const bool populate_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Loader>> MakeMmapLoader(const std::vector<CheckpointFile>& files, bool populate) {
  std::vector<std::shared_ptr<const MappedFile>> mapped;
  for (const CheckpointFile& file : files) {
    LIME_ASSIGN_OR_RETURN(mapped.emplace_back(), MappedFile::Map(file.path, file.bytes));
  }
  return std::unique_ptr<Loader>(std::make_unique<MmapLoader>(std::move(mapped), populate));
}

}  // namespace lime
