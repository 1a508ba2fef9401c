// How each device spent a stretch of a timeline, and how much of its loading nobody had to wait for.
#pragma once

#include <optional>
#include <vector>

#include "planner/sim/timeline.h"

namespace lime {

// Milliseconds of one device within [begin, end): what lies outside is cut off, and what overlaps counts once.
struct DeviceTimes {
  double compute_ms = 0;
  double wait_weights_ms = 0;
  double wait_input_ms = 0;  // and for lent pages
  double load_ms = 0;        // its disk reads
  double send_ms = 0;        // at least one message is on the wire
};
std::vector<DeviceTimes> TimesOf(const Timeline& timeline, double begin_ms, double end_ms);

// Of the time in which a device loads, the share in which nothing stands still for it:
//   1 - (time in which the computation waits for weights) / (time in which the disk reads), at least 0.
// A device waits for weights only while the next part is being read or waits to be, so this is the share that hides behind computing and
// behind waiting for others. None where nothing loads. The share of several devices takes the sums of both times.
std::optional<double> HiddenLoading(const DeviceTimes& times);
std::optional<double> HiddenLoading(const std::vector<DeviceTimes>& devices);

}  // namespace lime
