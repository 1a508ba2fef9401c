// Rates and times as people write them in cluster files.
#pragma once

#include <string>
#include <string_view>

#include "planner/base/status.h"

namespace lime {

// Bytes per second: "100Mbit/s", "1Gbit/s", "12.5MB/s", "10MiB/s". Decimal prefixes are powers of
// 1000, as for network devices.
absl::StatusOr<double> ParseBandwidth(std::string_view text);

// Milliseconds: "0.3ms", "300us", "1s".
absl::StatusOr<double> ParseMilliseconds(std::string_view text);

// "100 Mbit/s", "1.5 Gbit/s".
std::string FormatBandwidth(double bytes_per_second);

}  // namespace lime
