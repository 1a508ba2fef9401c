// Text that is not in UTF-8, as some editors and shells write it.
#pragma once

#include <string_view>

namespace lime {

// "UTF-16" or "UTF-32" of a text that begins with the byte order mark of one; else empty.
std::string_view WideMark(std::string_view text);

// The same, and of one without a mark whose first four bytes are two characters or one of ASCII, as those of JSON are.
std::string_view WideJson(std::string_view text);

}  // namespace lime
