// What this device can do, measured once by `lime profile` and kept, so that every run can say in advance how long a token takes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "nlohmann/json.hpp"
#include "planner/base/bytes.h"
#include "planner/base/status.h"

namespace lime::cli {

struct DiskRate {
  Bytes read_bytes = 0;  // of one request
  int depth = 0;         // requests in flight
  double bytes_per_second = 0;
};

struct DeviceProfile {
  std::string cpu;  // as the system names it; a profile of another CPU is not used
  std::string instruction_set;
  int threads = 0;
  double read_bytes_per_second = 0;  // of memory, all threads
  double flops = 0;                  // fp32 multiply-adds, counting two, all threads
  std::vector<DiskRate> disk;        // direct reads; empty where none was measured
  bool stored = false;               // read from the profile file rather than measured just now

  // Milliseconds of a step that reads `bytes` of weights and KV, at the rate of the memory.
  double PredictStepMs(Bytes bytes) const {
    return read_bytes_per_second > 0 ? static_cast<double>(bytes) / read_bytes_per_second * 1000 : 0;
  }
};

// $XDG_CACHE_HOME/lime/profile.json, or ~/.cache/lime/profile.json.
std::string ProfilePath();

// Memory that is read to measure its rate, several times the last cache, where so much can be had.
inline constexpr Bytes kMeasuredBytes = 256 * kMiB;

// Measures memory, by reading `bytes` of it, and in more than half a second compute too.
DeviceProfile MeasureDevice(int threads, double seconds, Bytes bytes = kMeasuredBytes);

// Adds the rates of direct reads of `file`, by request size and depth, `seconds` each.
absl::Status MeasureDisk(const std::string& file, double seconds, DeviceProfile& profile);

// The stored profile if it is of this CPU and as many threads, else a quick measurement of the memory, in a child process, so that it never
// counts as memory of this one. The child takes at most half of `room`; where that is too little to tell memory from cache, or the child
// fails, the rate is 0: unknown. REQUIRES: this process has one thread.
DeviceProfile LoadOrMeasureProfile(int threads, Bytes room);

absl::Status StoreProfile(const DeviceProfile& profile);

nlohmann::json ProfileJson(const DeviceProfile& profile);

}  // namespace lime::cli
