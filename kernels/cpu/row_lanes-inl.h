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

// a < limit ? yes : no, lane by lane; a NaN gives no.
HWY_INLINE F32x16 IfBelow(F32x16 a, F32x16 limit, F32x16 yes, F32x16 no) {
  LIME_EACH_VEC(i) no.v[i] = hn::IfThenElse(hn::Lt(a.v[i], limit.v[i]), yes.v[i], no.v[i]);
  return no;
}

// cap * tanh(x / cap). With a = |x / cap|: below 1/4 the series of tanh up to a^9 (the next term is
// below 1e-8 of the sum), else (1 - e^-2a) / (1 + e^-2a).
HWY_INLINE F32x16 SoftCap(F32x16 x, float cap) {
  const F32x16 y = Div(x, Set(cap)), a = Greater(y, Neg(y)), s = Mul(y, y);
  F32x16 p = Set(62.0f / 2835);
  p = MulAdd(p, s, Set(-17.0f / 315));
  p = MulAdd(p, s, Set(2.0f / 15));
  p = MulAdd(p, s, Set(-1.0f / 3));
  p = MulAdd(p, s, Set(1.0f));
  const F32x16 e = Exp(Mul(Set(-2.0f), a)), large = Div(Sub(Set(1.0f), e), Add(Set(1.0f), e));
  return Mul(Set(cap), IfBelow(a, Set(0.25f), Mul(y, p), IfBelow(y, Zero(), Neg(large), large)));
}

HWY_INLINE float InverseRoot(float sum, int64_t width, float eps) {
  return 1.0f / std::sqrt(sum / static_cast<float>(width) + eps);
}

}  // namespace lime::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
