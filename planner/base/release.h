// The release of this program.
#pragma once

#include <string_view>

namespace lime {

// "0.1.0", from CMakeLists.txt.
std::string_view Release();

}  // namespace lime
