// Debian 12 builds Abseil with its own string_view; newer releases use the standard one. Our
// interfaces use std::string_view. Text() converts one for absl::StrCat and similar functions in
// both cases.
#pragma once

#include <string_view>

#include "absl/strings/string_view.h"

namespace lime {

inline absl::string_view Text(std::string_view text) {
  return absl::string_view(text.data(), text.size());
}

}  // namespace lime
