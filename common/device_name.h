// What devices and clusters may be called, in every file, flag and certificate: files are named after both.
#pragma once

#include <string_view>

#include "planner/base/status.h"

namespace lime {

inline constexpr std::string_view kDeviceNameRule = "1 to 64 letters, digits, '.', '_' and '-', the first no '.' and no '-'";
bool IsDeviceName(std::string_view name);

// Of a cluster's keys beside those of its devices.
inline constexpr char kAuthorityName[] = "ca", kCoordinatorName[] = "coordinator";

// InvalidArgument for what is no name, and for the two above.
absl::Status CheckDeviceName(std::string_view name);

}  // namespace lime
