// The rate of a link from one train: messages that followed each other so closely that the link never lay idle between them.
//
//   arrived at
//       |                                   o      what is late (jitter, a receiver that was not scheduled) lies above the line
//       |                      o   .  ' o
//       |              .  ' o              <- the rate: the slope of the lower convex hull, behind its beginning
//       |   o  o  . o
//       |__________________________________ bytes
//        bucket   tail
//
// A token bucket lets its burst pass at line speed and then exactly its rate, so the time is a convex function of the bytes, and nothing
// arrives early: the lower hull is the link, all that lies above it is the receiver. Behind the beginning, where the bucket was full, the
// two halves of what is left must have one slope; a train that was broken, or in which the rate has changed, does not say anything.
//
// Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "planner/base/bytes.h"

namespace lime {

// So many bytes of the train had arrived at that time, of the receiver's clock; both ascend.
struct TrainPoint {
  Bytes bytes = 0;
  int64_t arrived_us = 0;
};

struct TrainFit {
  double bytes_per_second = 0;
  int64_t tail_us = 0;    // how long what was measured took
  int64_t jitter_us = 0;  // by which the middle one of its messages was late
  int64_t pause_us = 0;   // half of the tail's time lies in pauses between messages that are as long as this, or longer

  // Whether a longer train would hardly tell it better.
  bool Good() const;
  // Likewise, of messages so small that a link may hand over several at once: the tail must have a number of such handfuls.
  bool GoodOfSmall() const;
};

inline constexpr int64_t kLeastTailUs = 7'000;  // shorter ones are lost in jitter
// A bucket is empty behind so many bytes, or after so long.
inline constexpr Bytes kMostBucketBytes = 512 * kKiB;
inline constexpr int64_t kMostBurstUs = 2'500;

// `drained`: the train had begun long before its first point, so that no bucket is full there. Nothing where the points do not tell.
std::optional<TrainFit> FitTrain(std::span<const TrainPoint> points, bool drained);

}  // namespace lime
