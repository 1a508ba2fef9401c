// What a device, a disk or a link may be said to have, and how long the texts that describe plans and devices may be, wherever they are
// read: configuration, profiles, messages. What one reader accepts every other accepts.
#pragma once

#include <cstddef>

#include "planner/base/bytes.h"

namespace lime {

inline constexpr int kMaxPlanDevices = 1024;

inline constexpr Bytes kMaxDeviceMemory = Bytes{1} << 44;  // of one device, and of each part of it
inline constexpr double kMaxBytesPerSecond = 1e15;         // of a link
inline constexpr double kMaxLatencyMs = 1e9;               // of a link
inline constexpr size_t kMaxLinks = 4096;

inline constexpr Bytes kMaxPlanBytes = 64 * kMiB;     // JSON
inline constexpr Bytes kMaxProfileBytes = 16 * kMiB;  // JSON

}  // namespace lime
