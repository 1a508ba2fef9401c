// Digests of weights, between messages and our types. Hostile input, as in proto/convert.h.
#pragma once

#include "lime/v1/control.pb.h"
#include "planner/base/status.h"
#include "planner/plan/weights_digest.h"

namespace lime {

void ToProto(const WeightsDigest& digest, v1::WeightsDigest& message);
// Every block is of a kind and layer that may be.
absl::StatusOr<WeightsDigest> FromProto(const v1::WeightsDigest& message);

}  // namespace lime
