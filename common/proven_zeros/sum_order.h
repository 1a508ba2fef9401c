// The orders in which linear layers add (docs/reference/numerics.md), as far as their rounding goes.
//
// A sum of products w[k] x[k] in fp32 differs from the exact sum by at most
//
//   RelativeError(order, cols) * sum of |w[k] x[k]| + kUnderflow
//
// if w and x are as the order reads them (AsRead), and no partial sum overflows (StaysFinite).
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "planner/base/names.h"

namespace lime {

enum class SumOrder : uint8_t {
  kPortable,  // 32 lanes, added up after every 2,048 elements
  kBf16Dot,   // the CPU's bf16 dot product, in 32 lanes; subnormal numbers count as zero
};
// By numerics_id. Other ids have no proof: "x86-avx512bf16-packed-1" adds scaled sums of groups,
// whose rounding does not follow from the rounded weights.
inline constexpr Names<SumOrder, 2> kSumOrderNames{{{SumOrder::kPortable, "portable-f32-1"}, {SumOrder::kBf16Dot, "x86-avx512bf16-1"}}};

inline constexpr int64_t kMostProvenCols = 1 << 20;  // elements of a sum; bounds all error factors below

// Rounded operations that a product goes through at most: its lane, the tree over lanes, and the sum
// over groups of 2,048.
constexpr int64_t RoundingsOf(SumOrder order, int64_t cols) {
  constexpr int64_t kTree = 5, kGroup = 2048, kLanes = 32;
  if (order == SumOrder::kBf16Dot) return 2 * ((cols + 63) / 64) + kTree;
  return (std::min(cols, kGroup) + kLanes - 1) / kLanes + kTree + (cols + kGroup - 1) / kGroup;
}

// n u / (1 - n u), u = 2^-24, rounded up (Higham, "Accuracy and Stability of Numerical Algorithms",
// section 3.1).  REQUIRES: 1 <= cols <= kMostProvenCols
inline double RelativeError(SumOrder order, int64_t cols) {
  const double nu = static_cast<double>(RoundingsOf(order, cols)) * 0x1p-24;
  return nu / (1 - nu) * (1 + 0x1p-50);
}

// All roundings to subnormal numbers or to zero of a sum: each loses at most 2^-126, and there are
// fewer than 2 kMostProvenCols.
inline constexpr double kUnderflow = 0x1p-104;

// A weight or input as the order reads it.
inline float AsRead(float value, SumOrder order) {
  const bool flushed = order == SumOrder::kBf16Dot && std::abs(value) < std::numeric_limits<float>::min();
  return flushed ? 0.0f : value;  // NaN stays NaN
}

// Whether every partial sum of w.x stays finite in fp32, from |w| and |x|: each is at most |w| |x|, but
// for rounding. False if a norm is NaN or infinite. For the up projection of a gated MLP the
// largest |w| must pass, since 0 * up is zero only if up is finite.
inline bool StaysFinite(double weight_norm, double input_norm) {
  return weight_norm * input_norm < 0x1p126;
}

// The largest |x| that a norm gives, whatever its input, from its largest |weight| and |bias|.
inline double LargestNormedInput(int64_t cols, double largest_weight, double largest_bias) {
  return std::sqrt(static_cast<double>(cols)) * (largest_weight + largest_bias);
}

}  // namespace lime
