// Valid names of devices and clusters, in all files, flags and certificates. Files are named after
// both.
#pragma once

#include <string_view>

#include "planner/base/status.h"

namespace lime {

inline constexpr std::string_view kDeviceNameRule = "1 to 64 letters, digits, '.', '_' and '-', not beginning with '.' or '-'";
bool IsDeviceName(std::string_view name);

// Names of a cluster's own keys, next to those of its devices.
inline constexpr char kAuthorityName[] = "ca", kCoordinatorName[] = "coordinator";

// InvalidArgument for an invalid name, and for the two names above.
absl::Status CheckDeviceName(std::string_view name);

}  // namespace lime
