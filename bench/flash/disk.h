// Reads of the ladder, with the reader of the engine (daemon/machine/block_reader.h): bursts that
// begin together, and ranges that are read one after another. All reads are direct.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "daemon/machine/block_reader.h"
#include "daemon/machine/huge_buffer.h"
#include "daemon/profile/measure_bursts.h"
#include "planner/base/random.h"
#include "planner/base/status.h"
#include "planner/demand/burst_fit.h"

namespace lime::flash {

// Thread: one.
class FlashDisk {
 public:
  // Some files of one disk, and so many reads in flight.
  static absl::StatusOr<std::unique_ptr<FlashDisk>> Open(const std::vector<std::string>& paths, int channels);

  // A read of a range into one place, or into several.
  struct Read {
    Extent extent;
    std::byte* memory = nullptr;                     // as of BlockReader::StartRead
    std::span<const BlockDevice::Segment> segments;  // or these; then the extent is whole 4 KiB
    std::function<absl::Status()> check = nullptr;   // on the disk's thread; may be null
  };
  // Starts all reads, and waits until all have ended: in milliseconds.
  absl::StatusOr<double> Burst(std::span<const Read> reads);
  // The ranges one after another, as streaming reads them: pieces of up to 4 MiB, two of them in
  // flight, which are read 1 MiB at a time. In milliseconds.
  absl::StatusOr<double> Sequential(std::span<const Extent> extents);

  // Of several bursts (BurstMeter::Measure), the median.
  absl::StatusOr<BurstPoint> MeasureBurst(int64_t reads, Bytes bytes, bool checksums, int repeats, Random& random);

  Bytes bytes_read() const { return bursts_->bytes_read() + sequential_->bytes_read(); }
  std::string Describe() const { return bursts_->device().Describe(); }

 private:
  FlashDisk(std::vector<Bytes> sizes, std::unique_ptr<BlockReader> bursts, std::unique_ptr<BlockReader> sequential)
      : bursts_(std::move(bursts)), sequential_(std::move(sequential)), meter_(*bursts_, std::move(sizes)) {}
  absl::Status NeedMemory(Bytes bytes);

  const std::unique_ptr<BlockReader> bursts_;      // of many channels
  const std::unique_ptr<BlockReader> sequential_;  // of those of streaming
  BurstMeter meter_;
  HugeBuffer memory_;  // of sequential reads; nobody looks at what it has
};

// Bursts of several sizes and numbers of reads, with checksums, for FitBursts.
enum class BurstGrid : uint8_t {
  kWhole,
  kBeside,  // a second or less, beside what it predicts
  kQuick,   // for tests
};
absl::StatusOr<std::vector<BurstPoint>> MeasureBursts(FlashDisk& disk, BurstGrid grid, uint64_t seed);

// The rate of random reads by size and number in flight (Figure 2b).
struct RatePoint {
  Bytes bytes = 0;
  int depth = 0;
  double gb_per_s = 0;
};
absl::StatusOr<std::vector<RatePoint>> MeasureRates(const std::vector<std::string>& paths, bool quick, uint64_t seed);

}  // namespace lime::flash
