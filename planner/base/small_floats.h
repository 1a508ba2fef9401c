// The small floating-point types of quantised weights, and conversions of single values: fp4 (E2M1)
// and the exponents (E8M0) of mxfp4, and fp8 (E4M3). Source: OCP Microscaling Formats (MX) 1.0,
// sections 5.3 and 5.4; OCP 8-bit Floating Point 1.0.
#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <limits>

namespace lime {

// fp4 by its four bits: the highest one is the sign.
inline constexpr std::array<float, 16> kFp4Values = {0.0f,  0.5f,  1.0f,  1.5f,  2.0f,  3.0f,  4.0f,  6.0f,
                                                     -0.0f, -0.5f, -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f};

// 2^(code - 127). Code 255 is NaN.
constexpr float PowerOfCode(uint8_t code) {
  if (code == 255) return std::numeric_limits<float>::quiet_NaN();
  return std::bit_cast<float>(code == 0 ? 0x400000u : uint32_t{code} << 23);
}

// fp8 with 4 bits of exponent and 3 of mantissa. It has no infinities; codes 0x7f and 0xff are NaN.
constexpr float Fp8Value(uint8_t code) {
  const uint32_t exponent = (code >> 3) & 15u, mantissa = code & 7u;
  if ((code & 0x7f) == 0x7f) return std::numeric_limits<float>::quiet_NaN();
  const float magnitude =
      exponent == 0 ? static_cast<float>(mantissa) * 0x1p-9f : std::bit_cast<float>(((exponent + 120) << 23) | (mantissa << 20));
  return (code & 0x80) != 0 ? -magnitude : magnitude;
}

}  // namespace lime
