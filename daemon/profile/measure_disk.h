// Rate and latency of direct reads of files, by request size and depth, under the limits in force.
#pragma once

#include <atomic>
#include <functional>
#include <string>
#include <vector>

#include "planner/base/bytes.h"
#include "planner/base/status.h"
#include "planner/plan/device/device_profile.h"

namespace lime {

struct MeasureDiskOptions {
  // For all points together, approximately. Each takes at least half a second and several rounds.
  double seconds = 8;
  Bytes memory = 128 * kMiB;  // for requests in flight; points that need more are left out
  // Requests use this much memory in turn, like a ring of streamed parts. In less memory, which
  // stays in a cache, they would be faster.
  Bytes spread = 64 * kMiB;
  std::vector<Bytes> read_bytes = {64 * kKiB, 256 * kKiB, kMiB, 4 * kMiB};
  std::vector<int> depths = {1, 4, 8, 16};
  std::function<void(double done, double total)> progress;  // in points; may be empty
  const std::atomic<bool>* cancelled = nullptr;
};

// Reads through `files` one after the other, and again from the first. A burst that limits and
// disks let through is read before the first point counts, and the first part of every point does
// not count. NotFound if a file is missing, InvalidArgument if no file holds a request, Cancelled
// when asked to stop.
absl::StatusOr<std::vector<DiskPoint>> MeasureDisk(const std::vector<std::string>& files, const MeasureDiskOptions& options);

}  // namespace lime
