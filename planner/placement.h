// Which blocks of a model stay in memory where not all can (Layer-Streaming, section 3.3).
#pragma once

#include <cstdint>
#include <string_view>

#include "planner/base/status.h"

namespace lime {

enum class Placement : uint8_t {
  kAuto,         // whatever is fastest
  kFirstN,       // the first ones, in order of use
  kLastN,        // the last ones
  kInterleaved,  // evenly spread
};

absl::StatusOr<Placement> ParsePlacement(std::string_view name);  // "auto", "first_n", "last_n", "interleaved"

}  // namespace lime
