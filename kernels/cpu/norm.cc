#include "kernels/cpu/norm.h"

#include "kernels/cpu/hwy_targets.h"
#include "kernels/cpu/parallel_rows.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/norm.cc"
#include <hwy/foreach_target.h>  // IWYU pragma: keep

#include "kernels/cpu/lanes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace lime::cpu::HWY_NAMESPACE {
namespace {

// Elements i .. i + 15 of a row of `width`; lanes beyond its end are zero.
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

// Sum of x^2 over the row.
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

template <typename T>
HWY_INLINE float Sum(const T* x, int64_t width) {
  F32x16 low = Zero(), high = Zero();
  for (int64_t i = 0; i < width; i += 2 * kLanes) {
    low = Add(low, LoadGroup(x, i, width));
    if (i + kLanes < width) high = Add(high, LoadGroup(x, i + kLanes, width));
  }
  return ReduceAdd(Add(low, high));
}

// x - mean; lanes beyond the row are zero, so that they add nothing to the variance.
template <typename T>
HWY_INLINE F32x16 Centred(const T* row, int64_t i, int64_t width, F32x16 mean) {
  const F32x16 centred = Sub(LoadGroup(row, i, width), mean);
  if (i + kLanes <= width) return centred;
  float lanes[kLanes];
  Store(centred, lanes);
  return LoadFirst(lanes, width - i);
}

template <typename T>
HWY_INLINE float SumOfCentredSquares(const T* x, int64_t width, float mean) {
  F32x16 low = Zero(), high = Zero();
  const F32x16 m = Set(mean);
  for (int64_t i = 0; i < width; i += 2 * kLanes) {
    const F32x16 a = Centred(x, i, width, m);
    low = MulAdd(a, a, low);
    if (i + kLanes >= width) continue;
    const F32x16 b = Centred(x, i + kLanes, width, m);
    high = MulAdd(b, b, high);
  }
  return ReduceAdd(Add(low, high));
}

HWY_INLINE float InverseRoot(float sum, int64_t width, float eps) {
  return 1.0f / std::sqrt(sum / static_cast<float>(width) + eps);
}

template <typename X, typename W>
HWY_INLINE void RmsNormRow(const X* x, const W* weight, int64_t width, float eps, X* out) {
  const F32x16 scale = Set(InverseRoot(SumOfSquares(x, width), width, eps));
  for (int64_t i = 0; i < width; i += kLanes)
    StoreGroup(Mul(Mul(LoadGroup(x, i, width), scale), LoadGroup(weight, i, width)), out, i, width);
}

template <typename T, typename W>
HWY_INLINE void LayerNormRow(const T* x, const W* weight, const W* bias, int64_t width, float eps, T* out) {
  const float mean = Sum(x, width) / static_cast<float>(width);
  const F32x16 m = Set(mean), scale = Set(InverseRoot(SumOfCentredSquares(x, width, mean), width, eps));
  for (int64_t i = 0; i < width; i += kLanes) {
    F32x16 y = Mul(Sub(LoadGroup(x, i, width), m), scale);
    const F32x16 b = bias != nullptr ? LoadGroup(bias, i, width) : Zero();
    y = MulAdd(y, weight != nullptr ? LoadGroup(weight, i, width) : Set(1.0f), b);
    StoreGroup(y, out, i, width);
  }
}

// Calls fn with a value of the rows' type and one of the weights'.
template <typename Fn>
HWY_INLINE void WithNormTypes(const NormShape& s, const Fn& fn) {
  WithWorkingType(s.dtype, [&](auto x) HWY_ATTR { WithWorkingType(s.weight_dtype, [&](auto weight) HWY_ATTR { fn(x, weight); }); });
}

void RmsNormRows(const NormShape& s, const void* x, const void* weight, float eps, void* out, int64_t begin, int64_t end) {
  WithNormTypes(s, [&](auto x_type, auto weight_type) HWY_ATTR {
    using T = decltype(x_type);
    using W = decltype(weight_type);
    for (int64_t row = begin; row < end; ++row)
      RmsNormRow(static_cast<const T*>(x) + row * s.x_stride, static_cast<const W*>(weight), s.width, eps,
                 static_cast<T*>(out) + row * s.out_stride);
  });
}

void LayerNormRows(const NormShape& s, const void* x, const void* weight, const void* bias, float eps, void* out, int64_t begin,
                   int64_t end) {
  WithNormTypes(s, [&](auto x_type, auto weight_type) HWY_ATTR {
    using T = decltype(x_type);
    using W = decltype(weight_type);
    for (int64_t row = begin; row < end; ++row)
      LayerNormRow(static_cast<const T*>(x) + row * s.x_stride, static_cast<const W*>(weight), static_cast<const W*>(bias), s.width, eps,
                   static_cast<T*>(out) + row * s.out_stride);
  });
}

void HeadRmsNormRow(float* x, int64_t heads, int64_t head_dim, const void* weight, DType weight_dtype, float eps) {
  WithWorkingType(weight_dtype, [&](auto type) HWY_ATTR {
    using W = decltype(type);
    for (int64_t head = 0; head < heads; ++head, x += head_dim) RmsNormRow(x, static_cast<const W*>(weight), head_dim, eps, x);
  });
}

}  // namespace
}  // namespace lime::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lime::cpu {

HWY_EXPORT(RmsNormRows);
HWY_EXPORT(LayerNormRows);
HWY_EXPORT(HeadRmsNormRow);

void RmsNorm(ThreadPool& pool, const NormShape& shape, const void* x, const void* weight, float eps, void* out) {
  ParallelRows(pool, shape.rows, shape.width, [&](int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(RmsNormRows)(shape, x, weight, eps, out, begin, end);
  });
}

void LayerNorm(ThreadPool& pool, const NormShape& shape, const void* x, const void* weight, const void* bias, float eps, void* out) {
  ParallelRows(pool, shape.rows, shape.width, [&](int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(LayerNormRows)(shape, x, weight, bias, eps, out, begin, end);
  });
}

void HeadRmsNorm(ThreadPool& pool, float* x, int64_t tokens, int64_t heads, int64_t head_dim, int64_t token_stride, const void* weight,
                 DType weight_dtype, float eps) {
  ParallelRows(pool, tokens, heads * head_dim, [&](int64_t begin, int64_t end) {
    for (int64_t token = begin; token < end; ++token)
      HWY_DYNAMIC_DISPATCH(HeadRmsNormRow)(x + token * token_stride, heads, head_dim, weight, weight_dtype, eps);
  });
}

}  // namespace lime::cpu
#endif  // HWY_ONCE
