// Numbers for the tests of kernels.
#pragma once

#include <cstdint>
#include <vector>

#include "planner/base/float_bits.h"

namespace lime::cpu {

// `n` numbers with mean 0 and deviation `scale`, nearly normally distributed: each is a sum of
// eight uniform numbers from two states of SplitMix64. The standard library's generator would take
// half of the tests' time.
inline std::vector<float> RandomFloats(int64_t n, uint32_t seed, float scale = 1.0f) {
  constexpr float kMean = 8 * 65535 / 2.0f, kDeviation = 53509.86f;  // of the sum: sqrt(8 (65536^2 - 1) / 12)
  uint64_t state = seed;
  std::vector<float> x(n);
  for (float& value : x) {
    uint32_t sum = 0;
    for (int half = 0; half < 2; ++half) {
      uint64_t z = state += 0x9e3779b97f4a7c15;
      z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9, z = (z ^ z >> 27) * 0x94d049bb133111eb, z ^= z >> 31;
      sum += (z & 0xffff) + (z >> 16 & 0xffff) + (z >> 32 & 0xffff) + (z >> 48);
    }
    value = (static_cast<float>(sum) - kMean) / kDeviation * scale;
  }
  return x;
}

inline std::vector<BF16> RandomBf16(int64_t n, uint32_t seed) {
  std::vector<BF16> values;
  for (const float value : RandomFloats(n, seed)) values.push_back(FromFloat<BF16>(value));
  return values;
}

}  // namespace lime::cpu
