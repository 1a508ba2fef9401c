// Messages of `lime doctor`, and our types: the same door as convert.h.
#pragma once

#include <string>
#include <vector>

#include "lime/v1/control.pb.h"
#include "planner/base/finding.h"
#include "planner/base/status.h"

namespace lime {

inline constexpr double kMaxInspectSeconds = 10;

struct InspectCall {
  std::string weights;  // folder on the device; empty: the one that it was started with
  double seconds = 0;   // that measuring its disk may take; 0: it is not measured
};
void ToProto(const InspectCall& call, v1::InspectRequest& message);
absl::StatusOr<InspectCall> FromProto(const v1::InspectRequest& message);

// At most 64 of them, each of at most 1,024 bytes; what is longer is cut on its way out.
void ToProto(const std::vector<Finding>& findings, v1::InspectReply& message);
absl::StatusOr<std::vector<Finding>> FromProto(const v1::InspectReply& message);

}  // namespace lime
