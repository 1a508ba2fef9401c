// The release that this program is of.
#pragma once

#include <string_view>

namespace lime {

// "0.1.0", as CMakeLists.txt says.
std::string_view Release();

}  // namespace lime
