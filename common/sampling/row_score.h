// Scores from one row of logits: the likeliest ids, and the log-probability of one id. They are of
// the logits themselves, before penalties, biases and masks.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>

#include "absl/container/inlined_vector.h"

namespace lime {

inline constexpr int32_t kMostLogprobs = 20;  // likeliest ids beside a generated token

}  // namespace lime

namespace lime::cpu {

struct RowScore {
  std::optional<double> logprob;  // natural logarithm, for the requested id
  // Natural logarithm of the sum of e^logit over all ids. A logit less this is the log-probability
  // of its id. Set with `logprob`.
  std::optional<double> log_sum;
  // Ids and their logits, likeliest first. A copy of at most kMostLogprobs allocates nothing.
  absl::InlinedVector<std::pair<int32_t, float>, kMostLogprobs> top;

  friend bool operator==(const RowScore&, const RowScore&) = default;
};

}  // namespace lime::cpu
