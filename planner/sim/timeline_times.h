// How each device spends a part of a timeline, and which share of its loading is hidden.
#pragma once

#include <optional>
#include <vector>

#include "planner/sim/timeline.h"

namespace lime {

// Milliseconds of one device within [begin, end). Overlapping spans count once.
struct DeviceTimes {
  double compute_ms = 0;
  double wait_weights_ms = 0;
  double wait_input_ms = 0;  // also waits for a KV host
  double load_ms = 0;        // its disk reads
  double send_ms = 0;        // at least one message is on the wire
};
std::vector<DeviceTimes> TimesOf(const Timeline& timeline, double begin_ms, double end_ms);

// The share of loading for which nothing waits:
//   1 - (time in which the computation waits for weights) / (time in which the disk reads), at least 0.
// A device waits for weights only while the next part is read or queued. This is therefore the
// share that overlaps with computing or with other waits. nullopt if nothing loads. For several
// devices, both times are summed.
std::optional<double> HiddenLoading(const DeviceTimes& times);
std::optional<double> HiddenLoading(const std::vector<DeviceTimes>& devices);

}  // namespace lime
