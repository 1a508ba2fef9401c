// A file of random bytes on the disk of a folder. It serves to measure that disk while there are no
// weights on it.
//
// The file has no name: it disappears with its owner, also if the process is killed.
#pragma once

#include <atomic>
#include <functional>
#include <string>

#include "daemon/machine/files.h"
#include "planner/base/bytes.h"
#include "planner/base/status.h"

namespace lime {

struct DiskSampleOptions {
  Bytes most = 256 * kMiB;
  // Fewer bytes say nothing about a disk that remembers recent writes.
  Bytes least = 32 * kMiB;
  // After this time, no more than `least` is written.
  double seconds = 5;
  std::function<void(double done, double total)> progress;  // in bytes; may be empty
  const std::atomic<bool>* cancelled = nullptr;
};

class DiskSample {
 public:
  // Makes the folder if it is missing. Writes at most half of the free bytes there, past the page
  // cache if the file system can. ResourceExhausted, with the numbers, if that is less than
  // `least`; Cancelled when asked to stop.
  static absl::StatusOr<DiskSample> Write(const std::string& folder, const DiskSampleOptions& options);

  // A path by which this process, and no other, can open the file.
  const std::string& path() const { return path_; }
  Bytes bytes() const { return bytes_; }

 private:
  DiskSample(FileDescriptor file, Bytes bytes);

  FileDescriptor file_;
  std::string path_;
  Bytes bytes_ = 0;
};

}  // namespace lime
