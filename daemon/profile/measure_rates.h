// Rates of memory and arithmetic of this device.
#pragma once

#include "planner/base/bytes.h"
#include "planner/plan/device_profile.h"

namespace lime {

// Memory that is read to measure its rate, several times the last cache, where so much can be had.
inline constexpr Bytes kMeasuredBytes = 256 * kMiB;

// A profile of this CPU and so many threads, with nothing measured.
DeviceProfile EmptyProfile(int threads);

// Adds the rates of memory, by reading `bytes` of it, and of multiply-adds. Takes `seconds`, about.
void MeasureRates(double seconds, Bytes bytes, DeviceProfile& profile);

// Bytes per second that `threads` read memory at: a look of 50 ms that takes at most half of `room`, and 128 MiB. Where that is too little
// to tell memory from cache, 0: unknown.
double MeasureMemory(int threads, Bytes room);

// The same in a child process, so that what it takes never counts as memory of this one; 0 also where the child fails.
// REQUIRES: this process has one thread.
double MeasureMemoryApart(int threads, Bytes room);

}  // namespace lime
