// Limits for devices, disks and links, and for the texts that describe plans and devices. All
// readers (configuration, profiles, messages) use them, so what one reader accepts the others
// accept too.
#pragma once

#include <cstddef>

#include "planner/base/bytes.h"

namespace lime {

inline constexpr int kMaxPlanDevices = 1024;

inline constexpr Bytes kMaxDeviceMemory = Bytes{1} << 44;  // also for each kind of its memory
inline constexpr double kMaxBytesPerSecond = 1e15;         // of a link
inline constexpr double kMaxLatencyMs = 1e9;               // of a link
inline constexpr size_t kMaxLinks = 4096;

inline constexpr Bytes kMaxPlanBytes = 64 * kMiB;     // JSON
inline constexpr Bytes kMaxProfileBytes = 16 * kMiB;  // JSON

}  // namespace lime
