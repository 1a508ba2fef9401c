// Softmax over a vocabulary with one fixed order of every sum: ranges of 1,024 ids, ascending, wherever each was computed.
#pragma once

#include <span>

namespace lime {

inline constexpr int kSoftmaxRange = 1024;  // ids

// e^x for x <= 0 from additions and multiplications alone, so that every IEEE machine gives the same bits; relative error
// below 1e-15. 0 below -708 and for -infinity.
double DeterministicExp(double x);

// The largest logit of a range, and the sum of e^(logit - max) over it in ascending order. An empty or all -infinity range
// has sum 0.
struct RangeSum {
  float max = 0;
  double sum = 0;
};

// REQUIRES: no NaN, no +infinity.
RangeSum SumRange(std::span<const float> logits);

// The same of two neighbouring stretches of ids; fold from left to right.
RangeSum Combine(const RangeSum& left, const RangeSum& right);

// Over all logits: SumRange of each range of 1,024 ids, combined in ascending order.
RangeSum SumAll(std::span<const float> logits);

}  // namespace lime
