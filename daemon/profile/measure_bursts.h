// The time of bursts of small direct reads at random offsets, as a layer with neurons on demand asks
// for them: reads that begin together, with nothing else under way.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "daemon/machine/block_reader.h"
#include "daemon/machine/huge_buffer.h"
#include "planner/base/bytes.h"
#include "planner/base/random.h"
#include "planner/base/status.h"
#include "planner/demand/burst_fit.h"

namespace lime {

// Bytes of each file. NotFound names the one that is missing.
absl::StatusOr<std::vector<Bytes>> FileSizes(const std::vector<std::string>& paths);

// Thread: one.   REQUIRES: the reader, whose files have these sizes, outlives this object
class BurstMeter {
 public:
  // Reads fill `spread` bytes of memory in turn. In less memory, which stays in a cache, they would be faster.
  BurstMeter(BlockReader& reader, std::vector<Bytes> sizes, Bytes spread = 64 * kMiB)
      : reader_(reader), sizes_(std::move(sizes)), spread_(spread) {}

  // Milliseconds of a burst of so many reads of so many bytes, at random offsets of 4 KiB over the whole
  // of a file. With `checksums`, one of each read is computed, too, as of records of neurons. Large files are
  // chosen more often.  REQUIRES: `bytes` is a multiple of 4 KiB
  // InvalidArgument if no file has as many bytes; ResourceExhausted without memory for the reads.
  absl::StatusOr<double> Measure(int64_t reads, Bytes bytes, bool checksums, Random& random);

 private:
  BlockReader& reader_;
  const std::vector<Bytes> sizes_;
  const Bytes spread_;
  HugeBuffer memory_;
  Bytes place_ = 0;                 // of the next read, in turn
  std::atomic<uint64_t> sums_ = 0;  // all checksums: nobody needs them, but they must be computed
};

inline constexpr Bytes kLeastBurstMemory = 8 * kMiB;

struct MeasureBurstsOptions {
  double seconds = 2;             // approximately; a slow disk takes longer for the fewest bursts that say anything
  Bytes memory = 64 * kMiB;       // for what is read; less than kLeastBurstMemory: nothing is measured
  Bytes least_bytes = 32 * kMiB;  // of all files: random reads of less say little about the disk
  std::vector<Bytes> read_bytes = {4 * kKiB, 8 * kKiB, 16 * kKiB, 32 * kKiB, 64 * kKiB};
  std::vector<int64_t> reads = {8, 32, 128};  // of a burst; ascending
  const std::atomic<bool>* cancelled = nullptr;
};

// The fit of such bursts with checksums, with as many reads in flight as the reader of neurons has, by the medians of
// several of each kind. nullopt if the files or the memory are too small. NotFound if a file is missing, Cancelled when asked to
// stop.
absl::StatusOr<std::optional<BurstCost>> MeasureBursts(const std::vector<std::string>& files, const MeasureBurstsOptions& options);

}  // namespace lime
