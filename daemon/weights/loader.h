// The two ways to bring tensors into memory. WeightStore chooses one.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "daemon/machine/block_reader.h"
#include "daemon/weights/checkpoint.h"
#include "daemon/weights/load_meter.h"
#include "planner/base/bytes.h"
#include "planner/base/dtype.h"
#include "planner/base/status.h"

namespace lime {

// Progress of a load, in bytes of tensors.
struct LoadProgress {
  Bytes done = 0;
  Bytes total = 0;
};

struct LoadOptions {
  // Called on the thread that loads, about ten times a second, and once at the end.
  std::function<void(const LoadProgress&)> progress;
  // Any thread may set it to stop the load, which then returns kCancelled within one read.
  const std::atomic<bool>* cancelled = nullptr;
};

struct WantedTensor {
  TensorLocation at;
  DType dtype = DType::kBF16;
};

struct TensorExtent {
  Extent extent;
  // The wanted tensors inside: [first, last).
  size_t first = 0, last = 0;
};

// Joins extents that are at most `max_gap` bytes apart: reading across a small gap costs less than
// another read.
// REQUIRES: `wanted` ascends by file and offset.
std::vector<TensorExtent> JoinExtents(const std::vector<WantedTensor>& wanted, Bytes max_gap);

// The wanted tensors in memory, in the order asked for. `storage` owns the memory.
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
  // For people, such as "O_DIRECT through io_uring, 4 in flight".
  virtual std::string Describe() const = 0;
  // The bytes that the disk has delivered so far while loads waited for it. Nothing if that is not
  // known.
  virtual SteadyReads steady() const { return {}; }
};

struct ReadLoaderOptions {
  // Reads in flight. With 16, a busy core that submits the next read late leaves the disk no gap.
  int queue_depth = 16;
  Bytes read_bytes = 2 * kMiB;  // bytes of one read
  bool io_uring = true;         // false: threads with pread
  bool use_page_cache = true;   // copy cached bytes instead of reading them from the disk again
};

// Reads into anonymous 2 MiB pages. Copies bytes that the page cache holds and reads all others
// past it.
absl::StatusOr<std::unique_ptr<Loader>> MakeReadLoader(const std::vector<CheckpointFile>& files, const ReadLoaderOptions& options);

// Maps the files. `populate` makes all pages present while loading instead of at first use.
absl::StatusOr<std::unique_ptr<Loader>> MakeMmapLoader(const std::vector<CheckpointFile>& files, bool populate);

// Calls `progress` at a bounded rate and tells whether the load was cancelled.
class LoadWatcher {
 public:
  LoadWatcher(const LoadOptions& options, Bytes total);
  static constexpr absl::Duration kInterval = absl::Milliseconds(100);
  bool cancelled() const { return options_.cancelled != nullptr && options_.cancelled->load(std::memory_order_relaxed); }
  void Report(Bytes done);  // calls `progress` at most once per interval
  void Finish();            // reports that all bytes are done

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
