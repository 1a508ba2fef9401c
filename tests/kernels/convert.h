// The conversions with which operators load and store, as a function of their own.
#pragma once

#include <cstdint>

#include "planner/base/float_bits.h"

namespace lime::cpu {

// Converts n elements from one working dtype to another. REQUIRES: no overlap, except in == out
// with equal dtypes.
void Convert(const void* in, DType in_dtype, void* out, DType out_dtype, int64_t n);

}  // namespace lime::cpu
