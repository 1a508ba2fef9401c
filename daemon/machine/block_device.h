// Reads files of one disk asynchronously. It separates the choice of reads from their execution;
// tests inject faults here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "planner/base/bytes.h"
#include "planner/base/status.h"

namespace lime {

// The files of one model on one disk. One thread reads them and runs all completions.
class BlockDevice {
 public:
  // The result of one read. `bytes` may be fewer than asked for, and is 0 at the end of the file.
  struct Result {
    int error = 0;  // errno; 0: no error
    Bytes bytes = 0;
  };
  using Completion = std::function<void(Result)>;
  // A range of memory.
  struct Segment {
    std::byte* memory = nullptr;
    Bytes bytes = 0;
  };
  static constexpr size_t kMostSegments = 64;  // of one read

  virtual ~BlockDevice() = default;

  // Reads that may be in flight at once. Each uses its own channel.
  virtual int num_channels() const = 0;
  // Offset, length and memory of a read are multiples of this.
  virtual Bytes alignment() const = 0;
  virtual const std::vector<std::string>& paths() const = 0;
  // For people, such as "O_DIRECT through io_uring".
  virtual std::string Describe() const = 0;

  // Runs `task` on the device's thread. Any thread.
  virtual void Post(std::function<void()> task) = 0;

  // Starts one read on an idle channel; `done` runs on the device's thread. Call it on the device's
  // thread only.
  virtual void StartRead(int channel, int file, int64_t offset, std::byte* destination, Bytes bytes, Completion done) = 0;

  // The same, where the bytes of one range of the file go to several places in memory, in this order.
  // `segments` are copied; they may overlap, and then have the bytes of any of them.
  // REQUIRES: 1 to kMostSegments segments; memory and length of each are multiples of alignment()
  virtual void StartScatteredRead(int channel, int file, int64_t offset, std::span<const Segment> segments, Completion done) = 0;
};

struct BlockDeviceOptions {
  int channels = 4;
  bool direct = true;    // bypass the page cache, if the file system can
  bool io_uring = true;  // false: a pool of threads with pread
};

// Opens `paths` on the best device that the system offers: io_uring, or one thread for each
// channel.
absl::StatusOr<std::unique_ptr<BlockDevice>> OpenBlockDevice(const std::vector<std::string>& paths, const BlockDeviceOptions& options);

}  // namespace lime
