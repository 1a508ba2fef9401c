#include "daemon/stores/affine.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "planner/base/check.h"
#include "planner/base/float_bits.h"

namespace lime {
namespace {

constexpr float kSmallestScale = 1e-7f;  // for a constant group; half of it is not 0 in fp16

float Rounded(DType dtype, float value) {
  WithWorkingType(dtype, [&](auto stored) { value = ToFloat(FromFloat<decltype(stored)>(value)); });
  return value;
}

}  // namespace

GroupScale QuantizeGroup(std::span<const float> group, int bits, DType stored, std::span<uint8_t> codes) {
  LIME_CHECK_EQ(group.size(), codes.size());
  const auto top = static_cast<float>((1 << bits) - 1);
  float low = std::numeric_limits<float>::infinity(), high = -low, sum = 0;
  for (const float w : group) {
    low = std::min(low, w);
    high = std::max(high, w);
    sum += w * 0;  // 0, or NaN if any weight is not finite
  }
  if (std::isnan(sum)) {
    std::fill(codes.begin(), codes.end(), uint8_t{0});
    return {.scale = std::numeric_limits<float>::quiet_NaN(), .bias = std::numeric_limits<float>::quiet_NaN()};
  }
  const bool low_is_larger = std::fabs(low) > std::fabs(high);
  const float step = std::max((high - low) / top, kSmallestScale);
  GroupScale result{.scale = low_is_larger ? step : -step, .bias = 0};
  const float edge = low_is_larger ? low : high;
  const float steps_to_zero = std::nearbyint(edge / result.scale);
  if (steps_to_zero != 0) result = {.scale = edge / steps_to_zero, .bias = edge};
  result = {.scale = Rounded(stored, result.scale), .bias = Rounded(stored, result.bias)};
  for (size_t i = 0; i < group.size(); ++i) {
    codes[i] = static_cast<uint8_t>(std::clamp(std::nearbyint((group[i] - result.bias) / result.scale), 0.0f, top));
  }
  return result;
}

void PackCodes(std::span<const uint8_t> codes, int bits, std::span<uint32_t> words) {
  LIME_CHECK_EQ(words.size() * 32, codes.size() * static_cast<size_t>(bits));
  uint64_t pending = 0;
  int held = 0;
  size_t word = 0;
  for (const uint8_t code : codes) {
    pending |= static_cast<uint64_t>(code) << held;
    held += bits;
    if (held < 32) continue;
    words[word++] = static_cast<uint32_t>(pending);
    pending >>= 32;
    held -= 32;
  }
}

}  // namespace lime
