// Where the device's profile is kept between runs.
#pragma once

#include <string>

#include "planner/base/bytes.h"
#include "planner/base/status.h"
#include "planner/plan/device_profile.h"

namespace lime {

// $XDG_CACHE_HOME/lime/profile.json, or ~/.cache/lime/profile.json.
std::string DefaultProfilePath();

// NotFound where there is none, InvalidArgument with the field where it is not a profile.
absl::StatusOr<DeviceProfile> ReadProfile(const std::string& path);

// Makes its folder too; the file is whole or as it was.
absl::Status WriteProfile(const DeviceProfile& profile, const std::string& path);

// Whether the figures of `profile` hold for this CPU and so many threads.
bool IsOwn(const DeviceProfile& profile, int threads);

// The default profile where it can be read and is our own, else a quick look at the memory (MeasureMemoryApart), whose rate is 0
// where there is no room for it. REQUIRES: this process has one thread.
DeviceProfile LoadOrMeasureProfile(int threads, Bytes room);

}  // namespace lime
