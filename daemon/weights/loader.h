// The two ways to bring tensors into memory, behind WeightStore.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "daemon/weights/block_reader.h"
#include "daemon/weights/checkpoint.h"
#include "daemon/weights/load_meter.h"
#include "planner/base/bytes.h"
#include "planner/base/dtype.h"
#include "planner/base/status.h"

namespace lime {

// How far a load is. Counted in bytes of tensors.
struct LoadProgress {
  Bytes done = 0;
  Bytes total = 0;
};

struct LoadOptions {
  // Called on the thread that loads, about ten times a second, and once at the end.
  std::function<void(const LoadProgress&)> progress;
  // Set by anyone to give up: the load returns kCancelled within one read.
  const std::atomic<bool>* cancelled = nullptr;
};

struct WantedTensor {
  TensorLocation at;
  DType dtype = DType::kBF16;
};

struct TensorExtent {
  Extent extent;
  size_t first = 0, last = 0;  // the wanted tensors inside: [first, last)
};

// Joins neighbours that are at most `max_gap` bytes apart: reading across a small gap costs less than another read.
// REQUIRES: `wanted` ascends by file and offset.
std::vector<TensorExtent> JoinExtents(const std::vector<WantedTensor>& wanted, Bytes max_gap);

// Where the wanted tensors are, in the order asked for, and what keeps them there.
struct LoadedTensors {
  std::vector<const std::byte*> data;
  std::shared_ptr<const void> storage;
};

// Owner: WeightStore, which calls Load from one thread at a time.
class Loader {
 public:
  virtual ~Loader() = default;
  // REQUIRES: `wanted` ascends by file and offset, without duplicates.
  virtual absl::StatusOr<LoadedTensors> Load(const std::vector<WantedTensor>& wanted, const LoadOptions& options) = 0;
  // "O_DIRECT through io_uring, 4 in flight"; for people.
  virtual std::string Describe() const = 0;
  // What came from the disk so far, where it was the disk that took the time. Nothing where that is not known.
  virtual SteadyReads steady() const { return {}; }
};

struct ReadLoaderOptions {
  int queue_depth = 16;         // reads in flight: enough that a busy core, late to submit the next one, leaves the disk no gap
  Bytes read_bytes = 2 * kMiB;  // of one read
  bool io_uring = true;         // false: threads with pread
  bool use_page_cache = true;   // copy what is cached instead of reading it from the disk again
};

// Reads into anonymous 2 MiB pages: from the disk past the page cache, or from the page cache what it holds.
absl::StatusOr<std::unique_ptr<Loader>> MakeReadLoader(const std::vector<CheckpointFile>& files, const ReadLoaderOptions& options);

// Views of the files themselves. `populate` makes all pages present while loading instead of at first use.
absl::StatusOr<std::unique_ptr<Loader>> MakeMmapLoader(const std::vector<CheckpointFile>& files, bool populate);

// Calls `progress` at a bounded rate and says whether to give up.
class LoadWatcher {
 public:
  LoadWatcher(const LoadOptions& options, Bytes total);
  static constexpr absl::Duration kInterval = absl::Milliseconds(100);
  bool cancelled() const { return options_.cancelled != nullptr && options_.cancelled->load(std::memory_order_relaxed); }
  void Report(Bytes done);  // reports at most once an interval
  void Finish();            // reports all done

 private:
  void Call(Bytes done) const;
  const LoadOptions& options_;
  const Bytes total_;
  absl::Time next_;
};

inline bool Misaligned(const std::byte* address, DType dtype) {
  return reinterpret_cast<uintptr_t>(address) % ElementBytes(dtype) != 0;
}

}  // namespace lime
