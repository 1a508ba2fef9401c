// Reads and writes single numbers of the working dtypes, at any address.
#pragma once

#include <cstddef>
#include <cstring>

#include "planner/base/check.h"
#include "planner/base/dtype.h"
#include "planner/base/float_bits.h"

namespace lime {

// REQUIRES: IsWorkingDType(dtype).
inline float LoadFloat(DType dtype, const std::byte* at) {
  float value = 0;
  WithWorkingType(dtype, [&](auto stored) {
    std::memcpy(&stored, at, sizeof(stored));
    value = ToFloat(stored);
  });
  return value;
}

// REQUIRES: IsWorkingDType(dtype).
inline void StoreFloat(DType dtype, float value, std::byte* at) {
  LIME_CHECK(IsWorkingDType(dtype));
  WithWorkingType(dtype, [&](auto stored) {
    stored = FromFloat<decltype(stored)>(value);
    std::memcpy(at, &stored, sizeof(stored));
  });
}

}  // namespace lime
