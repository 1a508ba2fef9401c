// Where the device's profile is kept between runs.
#pragma once

#include <string>

#include "planner/base/bytes.h"
#include "planner/base/status.h"
#include "planner/plan/device_profile.h"

namespace lime {

// $XDG_CACHE_HOME/lime/profile.json, or ~/.cache/lime/profile.json. Empty where neither names a folder: a place that anybody may write,
// such as /tmp, would let others say how fast this machine is.
std::string DefaultProfilePath();
inline constexpr char kNoProfilePath[] =
    "neither HOME nor XDG_CACHE_HOME is an absolute path to keep the figures in; set one, or give --out FILE";

// NotFound where there is none, InvalidArgument with the field where it is not a profile.
absl::StatusOr<DeviceProfile> ReadProfile(const std::string& path);

// Makes its folder too; the file is whole or as it was. For the default path: FailedPrecondition where it is empty.
absl::Status WriteProfile(const DeviceProfile& profile, const std::string& path);

// Whether the figures of `profile` hold for this CPU and so many threads.
bool IsOwn(const DeviceProfile& profile, int threads);

// The default profile where it can be read and is our own, else a quick look at the memory (MeasureMemoryApart), whose rate is 0
// where there is no room for it. REQUIRES: this process has one thread.
DeviceProfile LoadOrMeasureProfile(int threads, Bytes room);

}  // namespace lime
