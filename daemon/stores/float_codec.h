// Converts between float and the working dtypes. Rounds to nearest even. For files; the kernels
// have wider versions of their own.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "planner/base/check.h"
#include "planner/base/dtype.h"

namespace lime {

inline float FloatFromBf16(uint16_t bits) {
  return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}

inline uint16_t Bf16FromFloat(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  // Sets a mantissa bit, so that it stays a NaN without its low bits.
  if (std::isnan(value)) return static_cast<uint16_t>(bits >> 16 | 0x40);
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

inline float FloatFromF16(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000) << 16;
  const uint32_t exponent = half >> 10 & 0x1f, mantissa = half & 0x3ff;
  if (exponent == 0x1f) return std::bit_cast<float>(sign | 0x7f800000 | mantissa << 13);
  if (exponent != 0) return std::bit_cast<float>(sign | (exponent + 112) << 23 | mantissa << 13);
  const float magnitude = std::ldexp(static_cast<float>(mantissa), -24);
  return sign != 0 ? -magnitude : magnitude;
}

inline uint16_t F16FromFloat(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const auto sign = static_cast<uint16_t>(bits >> 16 & 0x8000);
  const uint32_t magnitude = bits & 0x7fffffff;
  if (magnitude > 0x7f800000) return sign | 0x7e00 | static_cast<uint16_t>(magnitude >> 13 & 0x3ff);  // NaN
  if (magnitude >= 0x477ff000) return sign | 0x7c00;                                                  // rounds to infinity
  if (magnitude < 0x38800000) {                                                                       // below the smallest normal
    return sign | static_cast<uint16_t>(std::lrintf(std::ldexp(std::bit_cast<float>(magnitude), 24)));
  }
  const uint32_t rebased = magnitude - (112u << 23);
  return sign | static_cast<uint16_t>((rebased + 0xfff + (rebased >> 13 & 1)) >> 13);
}

// REQUIRES: IsWorkingDType(dtype).
inline float LoadFloat(DType dtype, const std::byte* at) {
  if (dtype == DType::kF32) {
    float value;
    std::memcpy(&value, at, sizeof(value));
    return value;
  }
  uint16_t bits;
  std::memcpy(&bits, at, sizeof(bits));
  return dtype == DType::kBF16 ? FloatFromBf16(bits) : FloatFromF16(bits);
}

// REQUIRES: IsWorkingDType(dtype).
inline void StoreFloat(DType dtype, float value, std::byte* at) {
  LIME_CHECK(IsWorkingDType(dtype));
  if (dtype == DType::kF32) {
    std::memcpy(at, &value, sizeof(value));
    return;
  }
  const uint16_t bits = dtype == DType::kBF16 ? Bf16FromFloat(value) : F16FromFloat(value);
  std::memcpy(at, &bits, sizeof(bits));
}

}  // namespace lime
