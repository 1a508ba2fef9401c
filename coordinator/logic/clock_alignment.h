// How the steady clock of another device stands to ours, from messages that went there and back.
//
//   ours    sent ──────────────────────────────────► came
//   theirs       └─► received ─────── answered ──┘
//
// The message and its answer were on their way for `came - sent - (answered - received)` together. Nobody knows how that was shared out
// between the two ways; taken for even, it errs by half of it at most. So the round trip that was shortest is believed. From then on the
// clocks may drift apart, by kMaxClockDrift at most.
//
// Pure.   Thread: the owner's.
#pragma once

#include <cstdint>

namespace lime {

// Crystals are good to 50 parts in a million each, and what corrects them moves less than that in the minutes of a trace.
inline constexpr double kMaxClockDrift = 1e-4;

struct ClockSample {
  double sent_ms = 0;      // our clock
  double received_ms = 0;  // theirs
  double answered_ms = 0;  // theirs
  double came_ms = 0;      // ours
};

class ClockAlignment {
 public:
  // False, and nothing has changed, for a sample that cannot be: an answer before the message, or numbers that are none.
  bool Add(const ClockSample& sample);

  int64_t samples() const { return samples_; }
  double round_trip_ms() const { return round_trip_ms_; }

  // REQUIRES: samples() > 0
  double ToOurs(double theirs_ms) const { return theirs_ms + offset_ms_; }
  // What ToOurs errs by at most.
  double ErrorMs(double theirs_ms) const;

 private:
  int64_t samples_ = 0;
  double round_trip_ms_ = 0;  // the least
  double offset_ms_ = 0;      // ours - theirs, by that
  double at_ms_ = 0;          // theirs, when it was measured
};

}  // namespace lime
