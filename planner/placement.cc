#include "planner/placement.h"

#include <array>
#include <utility>

#include "absl/strings/str_cat.h"
#include "planner/base/strings.h"

namespace lime {
namespace {

constexpr std::array<std::pair<Placement, std::string_view>, 4> kNames = {
    {{Placement::kAuto, "auto"}, {Placement::kFirstN, "first_n"}, {Placement::kLastN, "last_n"}, {Placement::kInterleaved, "interleaved"}}};

}  // namespace

absl::StatusOr<Placement> ParsePlacement(std::string_view name) {
  for (const auto& [placement, text] : kNames) {
    if (text == name) return placement;
  }
  return absl::InvalidArgumentError(absl::StrCat("\"", Text(name), "\" is no placement; auto, first_n, last_n and interleaved are"));
}

}  // namespace lime
