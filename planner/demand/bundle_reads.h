// Reads of bundles: which ranges of a file a step reads for its new neurons, and how long the reads
// take.
//
// A bundle has the weights of one neuron, one after another in the file ("LLM in a flash", section
// 3.2: row-column bundling). All bundles of a layer have the same size; `place` of a neuron is the
// number of its bundle in the file. Two reads become one if the gap between them costs less than a
// read's fixed time. Daemons read what JoinReads returns, so predictions count the same reads.
//
// Pure; sums, products and quotients are in a fixed order.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "planner/base/bytes.h"
#include "planner/base/status.h"

namespace lime {

inline constexpr Bytes kMostBundleBytes = Bytes{1} << 30;

struct JoinOptions {
  Bytes bundle_bytes = 0;   // from one bundle to the next, 1 to kMostBundleBytes
  Bytes gap_bytes = 0;      // two reads become one if at most this lies between them; at least 0
  Bytes longest_bytes = 0;  // and if together they have at most this; a bundle alone is always read
};

struct BundleRead {
  Bytes offset = 0;  // in the bundles of the layer
  Bytes bytes = 0;
  friend bool operator==(const BundleRead&, const BundleRead&) = default;
};

// InvalidArgument for options outside their bounds.
absl::Status CheckJoin(const JoinOptions& options);

// Writes the reads that bring these places into `reads`, ascending; allocates nothing if `reads` has
// room for as many reads as there are places.
// REQUIRES: CheckJoin accepts the options; `places` ascend, from 0 to 2^31 - 1.
void JoinReads(std::span<const int32_t> places, const JoinOptions& options, std::vector<BundleRead>& reads);

Bytes BytesOf(std::span<const BundleRead> reads);

// ---- Time

// Measured rates of reads by their size. The time of a read is linear in its size between two
// entries, that of the first entry below the first, and has the last entry's rate above the last.
struct RateBySize {
  Bytes bytes = 0;
  double bytes_per_s = 0;
};

// InvalidArgument unless there is an entry, sizes ascend from 1, rates are positive and finite, and a
// larger read never takes less time.
absl::Status CheckRates(std::span<const RateBySize> rates);

// Seconds of the reads, one after another at these rates.  REQUIRES: CheckRates accepts the rates.
double SecondsOf(std::span<const BundleRead> reads, std::span<const RateBySize> rates);

// What a burst of n reads of s bytes takes on a disk that has no other work:
//   burst_ms + n * (read_ms + s / bytes_per_ms); nothing without reads
struct BurstCost {
  double burst_ms = 0;
  double read_ms = 0;
  double bytes_per_ms = 0;

  double MsOf(double reads, double bytes) const;
  // Bytes that are read in the fixed time of a read: a gap up to this is worth reading.
  Bytes WorthReading() const;
  friend bool operator==(const BurstCost&, const BurstCost&) = default;
};

// InvalidArgument unless the times are finite and not negative, and the rate is positive and finite.
absl::Status CheckBurst(const BurstCost& cost);

}  // namespace lime
