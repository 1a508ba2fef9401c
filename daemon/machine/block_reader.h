// Reads extents of files into memory ahead of time. LoadBlocks and the prefetcher of streamed
// blocks use it.
#pragma once

#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "daemon/machine/block_device.h"
#include "planner/base/bytes.h"
#include "planner/base/status.h"

namespace lime {

// A contiguous range of one file.
struct Extent {
  int file = 0;  // index into the device's paths
  int64_t offset = 0;
  Bytes bytes = 0;
};

// Thread: StartRead, Post, Cancel and bytes_read from any; everything else, completions included,
// on the device's thread.
// Owner: WeightStore, or the prefetcher; one reader for each disk.
// Invariant: a channel carries at most one read, and reads of a request are submitted in file
// order.
class BlockReader {
 public:
  struct Options {
    Bytes read_bytes = 2 * kMiB;  // longest single read; a multiple of the device's alignment
    int max_attempts = 4;         // tries of one read before its error is reported
  };
  using Completion = std::function<void(absl::Status)>;

  BlockReader(std::unique_ptr<BlockDevice> device, const Options& options);
  // Cancels queued reads and waits for reads in flight.
  ~BlockReader();
  BlockReader(const BlockReader&) = delete;
  BlockReader& operator=(const BlockReader&) = delete;

  // An extent may begin at any offset. The enclosing aligned range is read, and the first byte of
  // the extent lands at buffer + BufferOffset(extent).
  Bytes BufferOffset(const Extent& extent) const;
  // Bytes that a buffer needs for `extent`.
  Bytes BufferBytes(const Extent& extent) const;

  // Reads `extent` into `buffer` and calls `done` once, on the device's thread. A failed read is
  // repeated up to max_attempts times; the final error names file and offset. REQUIRES: `buffer`
  // has the device's alignment and lives until `done`. `tag`: for Cancel; 0: none.
  void StartRead(const Extent& extent, std::byte* buffer, Completion done, int64_t tag = 0);

  // Reads one range of a file into several places in memory, as BlockDevice::StartScatteredRead does,
  // with the promises of StartRead. A short read is repeated as a whole.
  // REQUIRES: `segments` and their memory live until `done`
  void StartScatteredRead(int file, int64_t offset, std::span<const BlockDevice::Segment> segments, Completion done);

  // Runs `task` on the device's thread.
  void Post(std::function<void()> task) { device_->Post(std::move(task)); }

  // Completes every request with kCancelled as soon as its reads in flight have ended.
  void Cancel();
  // Completes the requests with this tag with kCancelled, as soon as their reads in flight have
  // ended. Does nothing to a request that has no other reads left.
  void Cancel(int64_t tag);

  // Bytes of all reads completed so far, alignment included.
  Bytes bytes_read() const { return bytes_read_.load(std::memory_order_relaxed); }
  const BlockDevice& device() const { return *device_; }

 private:
  struct Request;
  struct Read;

  void Submit(int channel, Read read);
  void FillChannels();
  void OnRead(int channel, Read read, BlockDevice::Result result);
  void FinishRead(const Read& read);
  absl::Status FinalError(const Read& read, BlockDevice::Result result) const;

  const Options options_;
  std::atomic<Bytes> bytes_read_ = 0;
  std::deque<Read> queue_;          // device's thread
  std::vector<int> idle_channels_;  // device's thread
  absl::Mutex mutex_;
  int open_requests_ ABSL_GUARDED_BY(mutex_) = 0;
  std::unique_ptr<BlockDevice> device_;  // last member: its thread uses the others
};

// Waits for several reads together.
//
// Thread: one thread calls Add and Await; completions may run on any. REQUIRES: it lives until all
// reads have ended.
class AwaitedReads {
 public:
  // Adds one read and returns its completion.
  BlockReader::Completion Add();
  // False if some reads are still running after `timeout`.
  bool Await(absl::Duration timeout);
  // Waits until all reads have ended. Returns the first error.
  absl::Status Await();

 private:
  absl::Mutex mutex_;
  int64_t remaining_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace lime
