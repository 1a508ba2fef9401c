#include "coordinator/logic/clock_alignment.h"

#include <cmath>

namespace lime {

bool ClockAlignment::Add(const ClockSample& sample) {
  const double ours_ms = sample.came_ms - sample.sent_ms, theirs_ms = sample.answered_ms - sample.received_ms;
  const double round_trip_ms = ours_ms - theirs_ms;
  const bool finite = std::isfinite(sample.received_ms) && std::isfinite(sample.answered_ms) && std::isfinite(round_trip_ms);
  if (!finite || theirs_ms < 0 || round_trip_ms < 0) return false;
  if (samples_++ > 0 && round_trip_ms >= round_trip_ms_) return true;
  round_trip_ms_ = round_trip_ms;
  offset_ms_ = ((sample.sent_ms - sample.received_ms) + (sample.came_ms - sample.answered_ms)) / 2;
  at_ms_ = (sample.received_ms + sample.answered_ms) / 2;
  return true;
}

double ClockAlignment::ErrorMs(double theirs_ms) const {
  return round_trip_ms_ / 2 + kMaxClockDrift * std::abs(theirs_ms - at_ms_);
}

}  // namespace lime
