// Who uses a plan, as JSON: {"user", "host", "address", "seconds", "since"}.
#pragma once

#include "absl/time/clock.h"
#include "nlohmann/json.hpp"
#include "proto/convert.h"

namespace lime::cli {

inline nlohmann::json UsedByJson(const PlanUser& user) {
  const absl::Time since = absl::Now() - absl::Seconds(user.seconds);
  return {{"user", user.coordinator.user},
          {"host", user.coordinator.host},
          {"address", user.address},
          {"seconds", user.seconds},
          {"since", absl::FormatTime(absl::RFC3339_sec, since, absl::UTCTimeZone())}};
}

}  // namespace lime::cli
