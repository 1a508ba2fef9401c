// A file of random bytes on the disk of a folder, to measure that disk where no weights are there yet.
//
// The file has no name: it is gone with its owner, also where the process is killed.
#pragma once

#include <atomic>
#include <functional>
#include <string>

#include "daemon/weights/files.h"
#include "planner/base/bytes.h"
#include "planner/base/status.h"

namespace lime {

struct DiskSampleOptions {
  Bytes most = 256 * kMiB;
  Bytes least = 32 * kMiB;                                  // less says nothing of a disk that remembers what was written last
  double seconds = 5;                                       // after which no more is written than the least
  std::function<void(double done, double total)> progress;  // bytes. May be empty
  const std::atomic<bool>* cancelled = nullptr;
};

class DiskSample {
 public:
  // Makes the folder where it is missing, and writes half of what is free there at most, around the page cache where the file system can.
  // ResourceExhausted, with the numbers, where that is less than the least; Cancelled when asked to stop.
  static absl::StatusOr<DiskSample> Write(const std::string& folder, const DiskSampleOptions& options);

  // Under which it can be opened, by this process alone.
  const std::string& path() const { return path_; }
  Bytes bytes() const { return bytes_; }

 private:
  DiskSample(FileDescriptor file, Bytes bytes);

  FileDescriptor file_;
  std::string path_;
  Bytes bytes_ = 0;
};

}  // namespace lime
