#include "kernels/cpu/rope.h"

#include "kernels/cpu/hwy_targets.h"
#include "kernels/cpu/parallel_rows.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/rope.cc"
#include <hwy/foreach_target.h>  // IWYU pragma: keep

#include "kernels/cpu/lanes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace lime::cpu::HWY_NAMESPACE {
namespace {

HWY_INLINE void Rotate(F32x16& a, F32x16& b, F32x16 c, F32x16 s) {
  const F32x16 first = MulAdd(a, c, Neg(Mul(b, s)));
  b = MulAdd(b, c, Mul(a, s));
  a = first;
}

void RotateHeads(float* x, int64_t heads, const float* cos, const float* sin, int64_t half) {
  for (int64_t head = 0; head < heads; ++head, x += 2 * half) {
    int64_t d = 0;
    for (; d + kLanes <= half; d += kLanes) {
      F32x16 a = Load(x + d), b = Load(x + half + d);
      Rotate(a, b, Load(cos + d), Load(sin + d));
      Store(a, x + d);
      Store(b, x + half + d);
    }
    if (d == half) continue;
    const int64_t n = half - d;
    F32x16 a = LoadFirst(x + d, n), b = LoadFirst(x + half + d, n);
    Rotate(a, b, LoadFirst(cos + d, n), LoadFirst(sin + d, n));
    StoreFirst(a, x + d, n);
    StoreFirst(b, x + half + d, n);
  }
}

}  // namespace
}  // namespace lime::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lime::cpu {

HWY_EXPORT(RotateHeads);

void ApplyRope(ThreadPool& pool, float* x, int64_t tokens, int64_t heads, int64_t stride, const float* cos, const float* sin, int64_t half,
               const int32_t* positions) {
  ParallelRows(pool, tokens, 2 * heads * half, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t)
      HWY_DYNAMIC_DISPATCH(RotateHeads)(x + t * stride, heads, cos + positions[t] * half, sin + positions[t] * half, half);
  });
}

}  // namespace lime::cpu
#endif  // HWY_ONCE
