// Measures rates of memory and arithmetic of this device.
#pragma once

#include "planner/base/bytes.h"
#include "planner/plan/device/device_profile.h"

namespace lime {

// Bytes that are read to measure the memory's rate: several times the last cache.
inline constexpr Bytes kMeasuredBytes = 256 * kMiB;

// A profile of this CPU with `threads` threads and nothing measured.
DeviceProfile EmptyProfile(int threads);

// Measures the rates of memory, by reading `bytes`, and of multiply-adds. Takes about `seconds`.
void MeasureRates(double seconds, Bytes bytes, DeviceProfile& profile);

// Bytes per second at which `threads` read memory. Takes 50 ms, and at most half of `room` and
// 128 MiB. 0: that is too little to tell memory from cache.
double MeasureMemory(int threads, Bytes room);

// As MeasureMemory, but in a child process, so that its memory never counts for this process. 0
// also if the child fails.
// REQUIRES: this process has one thread.
double MeasureMemoryApart(int threads, Bytes room);

}  // namespace lime
