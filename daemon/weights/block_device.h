// Where blocks are read from: the seam between what to read and how a read is done, and where tests inject faults.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "planner/base/bytes.h"
#include "planner/base/status.h"

namespace lime {

// The files of one model on one disk, read by one thread that all completions run on.
class BlockDevice {
 public:
  // What one read brought. `bytes` may be fewer than asked for, and is 0 at the end of the file.
  struct Result {
    int error = 0;  // errno, 0: none
    Bytes bytes = 0;
  };
  using Completion = std::function<void(Result)>;

  virtual ~BlockDevice() = default;

  // Reads that may be in flight at once, each on a lane of its own.
  virtual int num_lanes() const = 0;
  // Offset, length and memory of a read are multiples of this.
  virtual Bytes alignment() const = 0;
  virtual const std::vector<std::string>& paths() const = 0;
  // "O_DIRECT through io_uring"; for people.
  virtual std::string Describe() const = 0;

  // Runs `task` on the device's thread. Any thread.
  virtual void Post(std::function<void()> task) = 0;

  // Starts one read on an idle lane; `done` runs on the device's thread. Device's thread only.
  virtual void StartRead(int lane, int file, int64_t offset, std::byte* destination, Bytes bytes, Completion done) = 0;
};

struct BlockDeviceOptions {
  int lanes = 4;
  bool direct = true;    // bypass the page cache, where the file system can
  bool io_uring = true;  // false: a pool of threads with pread
};

// Opens `paths` on the best device the system offers: io_uring or, where that is off, a thread for every lane.
absl::StatusOr<std::unique_ptr<BlockDevice>> OpenBlockDevice(const std::vector<std::string>& paths, const BlockDeviceOptions& options);

}  // namespace lime
