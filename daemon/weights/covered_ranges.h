// Checksums of bytes that a block store names none of by themselves, since somebody cuts its blocks otherwise: what covers them is read
// once and compared with the checksums that it has, and they are hashed on the way.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "daemon/weights/checkpoint.h"
#include "planner/base/status.h"

namespace lime {

struct CoveredRangesOptions {
  std::string block;                             // that has them; for people
  int max_attempts = 4;                          // to read what differs from its checksum
  const std::atomic<bool>* cancelled = nullptr;  // ends the reading with kCancelled
};

// XXH3-64 by range; nothing of a range some bytes of which have no checksum. Reads past the page cache, through 16 MiB of memory. DataLoss
// names file, block and offset, and says what to do.  REQUIRES: no two of `ranges` overlap.  Thread: any; blocks
absl::StatusOr<std::vector<std::optional<uint64_t>>> HashCoveredRanges(const Checkpoint& checkpoint,
                                                                       const std::vector<TensorLocation>& ranges,
                                                                       const CoveredRangesOptions& options);

}  // namespace lime
