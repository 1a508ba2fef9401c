// What a device may be called, in every file, flag and certificate.
#pragma once

#include <string_view>

namespace lime {

inline constexpr std::string_view kDeviceNameRule = "1 to 64 letters, digits, '.', '_' and '-'";
bool IsDeviceName(std::string_view name);

}  // namespace lime
