// Numbers in fp64 and fp32 that are at least the exact ones.
#pragma once

#include <cmath>
#include <limits>
#include <span>

namespace lime {

inline constexpr double kHalfUlp = 0x1p-53;  // relative error of one rounding in fp64

// The smallest fp32 number that is not below `value`; NaN stays NaN.
inline float FloatAbove(double value) {
  constexpr float kMost = std::numeric_limits<float>::max();
  if (value > static_cast<double>(kMost)) return std::numeric_limits<float>::infinity();
  if (value < -static_cast<double>(kMost)) return -kMost;
  const auto nearest = static_cast<float>(value);
  return static_cast<double>(nearest) < value ? std::nextafter(nearest, std::numeric_limits<float>::infinity()) : nearest;
}

// At least the norm of the exact vector, of whose elements `elements` are rounded once. n additions
// and squares have a relative error of n + 1 roundings, of which the root halves; twice that covers
// this function's own roundings.  REQUIRES: at most 2^30 elements
template <typename T>
double NormAbove(std::span<const T> elements) {
  double sum = 0;
  for (const T element : elements) sum += static_cast<double>(element) * static_cast<double>(element);
  return std::sqrt(sum) * (1 + (static_cast<double>(elements.size()) + 8) * kHalfUlp);
}

}  // namespace lime
