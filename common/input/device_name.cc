#include "common/input/device_name.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "planner/base/strings.h"

namespace lime {

bool IsDeviceName(std::string_view name) {
  constexpr size_t kMaxNameBytes = 64;
  return !name.empty() && name.size() <= kMaxNameBytes && name.front() != '.' && name.front() != '-' &&
         std::ranges::all_of(name,
                             [](char c) { return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '.' || c == '_' || c == '-'; });
}

absl::Status CheckDeviceName(std::string_view name) {
  constexpr size_t kShownBytes = 80;
  const std::string shown = absl::StrCat("\"", absl::Utf8SafeCHexEscape(Text(name.substr(0, kShownBytes))), "\"");
  if (!IsDeviceName(name)) return Invalid(shown, " is not ", Text(kDeviceNameRule));
  if (name != kAuthorityName && name != kCoordinatorName) return absl::OkStatus();
  return Invalid(shown, " is reserved for keys that every cluster has; choose another name");
}

}  // namespace lime
