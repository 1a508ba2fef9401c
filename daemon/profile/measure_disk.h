// Rate and latency of direct reads of a model's files, by request size and depth, under whatever limits are in force.
#pragma once

#include <atomic>
#include <functional>
#include <string>
#include <vector>

#include "planner/base/bytes.h"
#include "planner/base/status.h"
#include "planner/plan/device_profile.h"

namespace lime {

struct MeasureDiskOptions {
  double seconds = 8;         // for all points together, about; a point takes half a second at least, and several rounds of its requests
  Bytes memory = 128 * kMiB;  // of requests in flight; points that need more are left out
  // Requests go round in so much memory, as in a ring of streamed pieces: what stays in a cache is written faster.
  Bytes spread = 64 * kMiB;
  std::vector<Bytes> read_bytes = {64 * kKiB, 256 * kKiB, kMiB, 4 * kMiB};
  std::vector<int> depths = {1, 4, 8, 16};
  std::function<void(double done, double total)> progress;  // points. May be empty
  const std::atomic<bool>* cancelled = nullptr;
};

// Reads through `files` one after the other, again from the first at the end. What limits and disks let through in a burst is read before
// the first point counts, and the first part of every point does not count. NotFound where a file is missing, InvalidArgument where all of
// them together are smaller than one request, Cancelled when asked to stop.
absl::StatusOr<std::vector<DiskPoint>> MeasureDisk(const std::vector<std::string>& files, const MeasureDiskOptions& options);

}  // namespace lime
