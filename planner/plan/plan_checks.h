// Checks of Plan::Validate. Each returns InvalidArgument.
#pragma once

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"
#include "planner/base/status.h"
#include "planner/plan/plan.h"

namespace lime {

// Limits that keep sums over all parts and devices from overflowing.
inline constexpr Bytes kMaxPartBytes = Bytes{1} << 44;
inline constexpr int64_t kMaxTokens = int64_t{1} << 40;

// A field in messages, put together only where one is needed: plans are checked within searches.
struct FieldName {
  absl::string_view of;           // "devices[0]"
  absl::string_view member = {};  // ".memory.kv"
};

inline absl::Status CheckInt(FieldName field, int64_t value, int64_t low, int64_t high) {
  if (value >= low && value <= high) return absl::OkStatus();
  return Invalid("plan: field \"", field.of, field.member, "\" = ", value, " is outside ", low, " to ", high);
}

// `of` describes the correct sum in the error.
inline absl::Status CheckSum(FieldName field, int64_t value, int64_t sum, absl::string_view of) {
  if (value == sum) return absl::OkStatus();
  return Invalid("plan: field \"", field.of, field.member, "\" = ", value, " is not ", sum, ", ", of);
}

inline absl::Status CheckNumber(FieldName field, double value) {
  if (value >= 0 && value <= kMaxPlanNumber) return absl::OkStatus();  // false for NaN
  return Invalid("plan: field \"", field.of, field.member, "\" = ", value, " is outside 0 to ", kMaxPlanNumber);
}

// Checks that the device's host computes its sums in the same order. kv_on_host.cc has this check
// and the next two.
absl::Status CheckHost(const Plan& plan, int device);
// Checks the memory for pieces that come back. If the host is never asked, that memory must hold a
// whole layer and the pieces in flight.
absl::Status CheckComingBack(const Plan& plan, int device);
// Checks memory and rates. `name`: the device's name in errors.
absl::Status CheckKvOfOthers(const PlanDevice& device, const PlanNeed& need, const std::string& name);

// Checks the parts with a host: which devices have them, and in which order. In hosted_units.cc.
absl::Status CheckHostedUnits(const Plan& plan);

}  // namespace lime
