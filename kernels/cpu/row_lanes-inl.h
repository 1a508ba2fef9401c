// Rows of elements in groups of sixteen lanes, for the operators that process rows. Included once
// for each Highway target.
#include "kernels/cpu/base/hwy_targets.h"
#include "planner/base/float_bits.h"

#if defined(LIME_KERNELS_CPU_ROW_LANES_INL_H_) == defined(HWY_TARGET_TOGGLE)  // NOLINT
#ifdef LIME_KERNELS_CPU_ROW_LANES_INL_H_
#undef LIME_KERNELS_CPU_ROW_LANES_INL_H_
#else
#define LIME_KERNELS_CPU_ROW_LANES_INL_H_
#endif

#include <cmath>
#include <cstdint>

#include "kernels/cpu/base/lanes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace lime::cpu::HWY_NAMESPACE {

// Loads elements i .. i + 15 of a row of `width`; lanes beyond its end are zero.
template <typename T>
HWY_INLINE F32x16 LoadGroup(const T* row, int64_t i, int64_t width) {
  return i + kLanes <= width ? Load(row + i) : LoadFirst(row + i, width - i);
}

template <typename T>
HWY_INLINE void StoreGroup(F32x16 x, T* row, int64_t i, int64_t width) {
  if (i + kLanes <= width) {
    Store(x, row + i);
  } else {
    StoreFirst(x, row + i, width - i);
  }
}

// LoadGroup for a row in any working dtype.
HWY_INLINE F32x16 LoadAny(const void* row, DType dtype, int64_t i, int64_t width) {
  F32x16 x;
  WithWorkingType(dtype, [&](auto type) HWY_ATTR { x = LoadGroup(static_cast<const decltype(type)*>(row), i, width); });
  return x;
}

// Sum of x^2 over the row: element i goes to lane i % 32, in two groups of lanes.
template <typename T>
HWY_INLINE float SumOfSquares(const T* x, int64_t width) {
  F32x16 low = Zero(), high = Zero();
  for (int64_t i = 0; i < width; i += 2 * kLanes) {
    const F32x16 a = LoadGroup(x, i, width);
    low = MulAdd(a, a, low);
    if (i + kLanes >= width) continue;
    const F32x16 b = LoadGroup(x, i + kLanes, width);
    high = MulAdd(b, b, high);
  }
  return ReduceAdd(Add(low, high));
}

HWY_INLINE float InverseRoot(float sum, int64_t width, float eps) {
  return 1.0f / std::sqrt(sum / static_cast<float>(width) + eps);
}

}  // namespace lime::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
