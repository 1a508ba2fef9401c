#include "common/sampling/softmax.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

namespace lime {
namespace {

constexpr auto kInverseFactorial = [] {
  std::array<double, 14> values{1.0};
  double factorial = 1.0;
  for (int i = 1; i < 14; ++i) values[i] = 1.0 / (factorial *= i);
  return values;
}();

}  // namespace

double DeterministicExp(double x) {
  if (!(x >= -708.0)) return 0.0;
  // x = k ln2 + r with |r| <= ln2 / 2, ln2 split so that k * kLn2High is exact.
  constexpr double kLn2High = 0x1.62e42fee00000p-1, kLn2Low = 0x1.a39ef35793c76p-33, kLog2E = 0x1.71547652b82fep+0;
  const double k = std::floor(x * kLog2E + 0.5);
  const double r = (x - k * kLn2High) - k * kLn2Low;
  double sum = kInverseFactorial[13];
  for (int i = 12; i >= 0; --i) sum = kInverseFactorial[i] + sum * r;  // Taylor, Horner's scheme
  return sum * std::bit_cast<double>(static_cast<uint64_t>(static_cast<int64_t>(k) + 1023) << 52);
}

RangeSum SumRange(std::span<const float> logits) {
  RangeSum range{-std::numeric_limits<float>::infinity(), 0.0};
  for (const float logit : logits) range.max = std::max(range.max, logit);
  if (std::isinf(range.max)) return range;
  for (const float logit : logits) range.sum += DeterministicExp(double{logit} - double{range.max});
  return range;
}

RangeSum Combine(const RangeSum& left, const RangeSum& right) {
  if (left.sum == 0) return right;
  if (right.sum == 0) return left;
  const float max = std::max(left.max, right.max);
  const auto scaled = [max](const RangeSum& part) { return part.sum * DeterministicExp(double{part.max} - double{max}); };
  return {max, scaled(left) + scaled(right)};
}

RangeSum SumAll(std::span<const float> logits) {
  RangeSum total{-std::numeric_limits<float>::infinity(), 0.0};
  for (size_t begin = 0; begin < logits.size(); begin += kSoftmaxRange) {
    total = Combine(total, SumRange(logits.subspan(begin, std::min<size_t>(kSoftmaxRange, logits.size() - begin))));
  }
  return total;
}

}  // namespace lime
