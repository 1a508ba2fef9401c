// Softmax over a vocabulary with a fixed order of every sum: ranges of 1,024 ids, ascending. The
// result does not depend on the device that computes a range.
#pragma once

#include <span>

namespace lime {

inline constexpr int kSoftmaxRange = 1024;  // ids

// e^x for x <= 0 by additions and multiplications only, so that every IEEE machine gives the same
// bits. Relative error below 1e-15. 0 below -708 and for -infinity.
double DeterministicExp(double x);

// The largest logit of a range, and the sum of e^(logit - max) in ascending order. The sum is 0 if
// the range is empty or all logits are -infinity.
struct RangeSum {
  float max = 0;
  double sum = 0;
};

// REQUIRES: no NaN, no +infinity.
RangeSum SumRange(std::span<const float> logits);

// The same for two neighbouring ranges. Combine from left to right.
RangeSum Combine(const RangeSum& left, const RangeSum& right);

// For all logits: SumRange of each range of 1,024 ids, combined in ascending order.
RangeSum SumAll(std::span<const float> logits);

}  // namespace lime
