// Computes the rate of a link from one train: messages so close to each other that the link was
// never idle between them.
//
//   arrived at
//       |                                   o      above the line: late (jitter, a receiver that
//       |                      o   .  ' o          was not scheduled)
//       |              .  ' o              <- the rate: the slope of the lower convex hull,
//       |   o  o  . o                         after its beginning
//       |__________________________________ bytes
//        bucket   tail
//
// A token bucket passes its burst at line speed and then exactly its rate. So the time is a convex
// function of the bytes, and nothing arrives early: the lower hull shows the rate of the link, and
// points above it show delays of the receiver. After the beginning, where the bucket was full, both
// halves of the rest must have one slope. A train that was interrupted, or whose rate has changed,
// gives no rate.
//
// Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "planner/base/bytes.h"

namespace lime {

// `bytes` of the train had arrived at this time of the receiver's clock. Both ascend.
struct TrainPoint {
  Bytes bytes = 0;
  int64_t arrived_us = 0;
};

struct TrainFit {
  double bytes_per_second = 0;
  int64_t tail_us = 0;    // duration of the part that was measured
  int64_t jitter_us = 0;  // how late the median of its messages was
  int64_t pause_us = 0;   // half of the tail's time lies in pauses at least as long as this

  // True if a longer train would hardly give a better rate.
  bool Good() const;
  // As Good, for small messages. A link may deliver several of them at once: the tail must have
  // several such groups.
  bool GoodOfSmall() const;
};

inline constexpr int64_t kLeastTailUs = 7'000;  // shorter tails are lost in jitter
// A bucket is empty after this number of bytes, or after this time.
inline constexpr Bytes kMostBucketBytes = 512 * kKiB;
inline constexpr int64_t kMostBurstUs = 2'500;

// `drained`: the train began long before its first point, so no bucket is full there. Nothing if
// the points give no rate.
std::optional<TrainFit> FitTrain(std::span<const TrainPoint> points, bool drained);

}  // namespace lime
