// Relates the steady clock of another device to ours, with messages that went there and back.
//
//   ours    sent ──────────────────────────────────► came
//   theirs       └─► received ─────── answered ──┘
//
// The message and its answer together travelled for `came - sent - (answered - received)`. The time
// of each way alone is unknown. If we assume that both ways took the same time, the error is at
// most half of the sum. So the sample with the shortest round trip counts. After it the clocks may
// drift apart, by at most kMaxClockDrift.
//
// Pure.   Thread: the owner's.
#pragma once

#include <cstdint>

namespace lime {

// Crystals are accurate to 50 parts in a million each. Clock corrections during a trace of minutes
// are smaller than that.
inline constexpr double kMaxClockDrift = 1e-4;

struct ClockSample {
  double sent_ms = 0;      // our clock
  double received_ms = 0;  // theirs
  double answered_ms = 0;  // theirs
  double came_ms = 0;      // ours
};

class ClockAlignment {
 public:
  // Returns false and changes nothing for an impossible sample: an answer before the message, or
  // times that are not finite numbers.
  bool Add(const ClockSample& sample);

  int64_t samples() const { return samples_; }
  double round_trip_ms() const { return round_trip_ms_; }

  // REQUIRES: samples() > 0
  double ToOurs(double theirs_ms) const { return theirs_ms + offset_ms_; }
  // The maximum error of ToOurs.
  double ErrorMs(double theirs_ms) const;

 private:
  int64_t samples_ = 0;
  double round_trip_ms_ = 0;  // the shortest
  double offset_ms_ = 0;      // ours - theirs, from that sample
  double at_ms_ = 0;          // theirs, the time of that sample
};

}  // namespace lime
