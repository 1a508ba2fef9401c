// The file that keeps the device's profile between runs.
#pragma once

#include <string>

#include "planner/base/bytes.h"
#include "planner/base/status.h"
#include "planner/plan/device/device_profile.h"

namespace lime {

// $XDG_CACHE_HOME/lime/profile.json, or ~/.cache/lime/profile.json. Empty if neither variable names
// a folder. There is no default where anybody may write, such as /tmp: others could then set this
// machine's speed.
std::string DefaultProfilePath();
inline constexpr char kNoProfilePath[] =
    "the profile has no folder: neither HOME nor XDG_CACHE_HOME is an absolute path; set one of them, or give --out FILE";

// NotFound if there is none, InvalidArgument with the field if it is not a profile.
absl::StatusOr<DeviceProfile> ReadProfile(const std::string& path);

// Makes the folder too. Replaces the file as a whole or not at all. FailedPrecondition: no path.
absl::Status WriteProfile(const DeviceProfile& profile, const std::string& path);

// True if the figures of `profile` hold for this CPU and `threads` threads.
bool IsOwn(const DeviceProfile& profile, int threads);

// The default profile if it can be read and is our own. Else a quick measurement of the memory
// (MeasureMemoryApart); rate 0: there is no room for it. REQUIRES: this process has one thread.
DeviceProfile LoadOrMeasureProfile(int threads, Bytes room);

}  // namespace lime
