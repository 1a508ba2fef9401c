// A profile with something of everything, for tests of messages.
#pragma once

#include "planner/base/bytes.h"
#include "planner/plan/device/device_profile.h"

namespace lime {

inline DeviceProfile MeasuredProfile() {
  DeviceProfile profile;
  profile.cpu = "some cpu";
  profile.threads = 2;
  profile.read_bytes_per_second = 1e10;
  profile.SetDisk({{.read_bytes = kMiB, .depth = 4, .bytes_per_second = 5e8, .latency_ms = 2}});
  return profile;
}

}  // namespace lime
