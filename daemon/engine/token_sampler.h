// Samples on the device with the head.
#pragma once

#include <cstdint>
#include <span>

#include "daemon/logic/order.h"
#include "planner/base/status.h"
#include "planner/plan/micro_batch.h"

namespace lime {

class TokenSampler {
 public:
  virtual ~TokenSampler() = default;
  virtual void Admit(const AdmitOrder& order) = 0;
  virtual void Retire(int32_t sequence) = 0;
  // The token after `row`, whose logits are [vocab].  Thread: the compute thread.
  virtual absl::StatusOr<int32_t> Sample(const BatchRow& row, std::span<const float> logits) = 0;
};

}  // namespace lime
