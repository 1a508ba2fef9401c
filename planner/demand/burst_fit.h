// The time of a burst of reads as three numbers, fitted to measured bursts.
//
// Pure.
#pragma once

#include <cstdint>
#include <span>

#include "planner/base/bytes.h"
#include "planner/base/status.h"
#include "planner/demand/bundle_reads.h"

namespace lime {

// A burst of reads that begin together: until all have ended.
struct BurstPoint {
  int64_t reads = 0;
  Bytes bytes = 0;  // of one read
  double ms = 0;
};

// t(n, s) = a + n (b + s / r) with the least sum of squared relative errors, and no negative
// number.
// InvalidArgument without at least 3 points, for points that are not positive, or all of one size.
absl::StatusOr<BurstCost> FitBursts(std::span<const BurstPoint> points);
// The mean of |measured / fitted - 1|.
double MeanError(std::span<const BurstPoint> points, const BurstCost& cost);

}  // namespace lime
