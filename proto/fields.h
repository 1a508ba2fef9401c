// Bounds of single fields of messages; the first wrong one is named.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "planner/base/status.h"

namespace lime::fields {

template <typename... What>
absl::Status Wrong(const What&... what) {
  return absl::InvalidArgumentError(absl::StrCat("message: ", what...));
}

inline absl::Status Within(const char* field, int64_t value, int64_t low, int64_t high) {
  if (value >= low && value <= high) return absl::OkStatus();
  return Wrong("field \"", field, "\" = ", value, " is outside ", low, " to ", high);
}

inline absl::Status Printable(const char* field, std::string_view text, size_t most) {
  if (text.size() > most) return Wrong("field \"", field, "\" has ", text.size(), " bytes, at most ", most);
  const auto control = [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; };
  if (std::ranges::any_of(text, control)) return Wrong("field \"", field, "\" holds control characters");
  return absl::OkStatus();
}

}  // namespace lime::fields
