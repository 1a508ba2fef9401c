// Samples on the device that ends the head. On a device with another part of the head, says which
// of its logits the sampling device needs.
#pragma once

#include <cstdint>
#include <span>

#include "common/order.h"
#include "planner/base/status.h"
#include "planner/plan/micro_batch.h"

namespace lime {

class TokenSampler {
 public:
  virtual ~TokenSampler() = default;
  virtual void Admit(const AdmitOrder& order) = 0;
  virtual void Retire(int32_t sequence) = 0;
  // The sequence goes back: the next row is at `positions`, and tokens behind that position are
  // sampled again.
  virtual void RollBack(int32_t /*sequence*/, int64_t /*positions*/) {}
  // The number of largest logits that Sample or its caller needs for a token of the sequence.
  // Logits that equal the smallest of these are needed too. INT64_MAX: all logits.  Thread: the
  // compute thread.
  virtual absl::StatusOr<int64_t> LogitsUsed(int32_t sequence) = 0;
  // The token after `row`, whose logits are [vocab].  Thread: the compute thread.
  virtual absl::StatusOr<int32_t> Sample(const BatchRow& row, std::span<const float> logits) = 0;
};

}  // namespace lime
