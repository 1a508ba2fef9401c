// The two 16-bit floating-point types, and conversions of single values.
//
// Every conversion rounds to nearest, ties to even. NaN stays NaN (made quiet), overflow becomes
// infinity, subnormals are kept.
#pragma once

#include <bit>
#include <cstdint>

#include "planner/base/dtype.h"

namespace lime {

// The upper half of an IEEE single.
struct BF16 {
  uint16_t bits;
};

// IEEE half.
struct F16 {
  uint16_t bits;
};

inline float ToFloat(float x) {
  return x;
}
inline float ToFloat(BF16 x) {
  return std::bit_cast<float>(uint32_t{x.bits} << 16);
}
inline float ToFloat(F16 x) {
  const uint32_t sign = uint32_t{x.bits & 0x8000u} << 16;
  const uint32_t exponent = (x.bits >> 10) & 31u, mantissa = x.bits & 1023u;
  if (exponent == 31) return std::bit_cast<float>(sign | 0x7f800000u | (mantissa << 13) | (mantissa != 0 ? 0x400000u : 0u));
  const float magnitude = exponent == 0 ? static_cast<float>(mantissa) * 0x1p-24f  // exact
                                        : std::bit_cast<float>(((exponent + 112) << 23) | (mantissa << 13));
  return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(magnitude));
}

template <typename T>
T FromFloat(float x);

template <>
inline float FromFloat<float>(float x) {
  return x;
}

template <>
inline BF16 FromFloat<BF16>(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return {static_cast<uint16_t>((bits >> 16) | 0x40u)};
  return {static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16)};
}

template <>
inline F16 FromFloat<F16>(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  const uint32_t sign = (bits >> 16) & 0x8000u, magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return {static_cast<uint16_t>(sign | 0x7e00u | ((bits >> 13) & 0x3ffu))};
  if (magnitude >= 0x477ff000u) return {static_cast<uint16_t>(sign | 0x7c00u)};  // 65520 and more
  uint32_t half;
  if (magnitude >= 0x38800000u) {  // a normal half
    half = (magnitude - 0x38000000u + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
  } else {  // adding 0.5 puts the rounded subnormal bits at the bottom of the sum
    half = std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) + 0.5f) - 0x3f000000u;
  }
  return {static_cast<uint16_t>(sign | half)};
}

// Calls fn(T{}) with the storage type of a working dtype. REQUIRES: IsWorkingDType(dtype).
template <typename Fn>
inline void WithWorkingType(DType dtype, Fn&& fn) {
  switch (dtype) {
    case DType::kBF16:
      return fn(BF16{});
    case DType::kF16:
      return fn(F16{});
    default:
      return fn(float{});
  }
}

}  // namespace lime
