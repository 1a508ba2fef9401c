#include "kernels/cpu/activation.h"

#include "kernels/cpu/hwy_targets.h"
#include "kernels/cpu/parallel_rows.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/activation.cc"
#include <hwy/foreach_target.h>  // IWYU pragma: keep

#include "kernels/cpu/lanes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace lime::cpu::HWY_NAMESPACE {
namespace {

struct Silu {
  HWY_INLINE F32x16 operator()(F32x16 x) const { return Div(x, Add(Set(1.0f), Exp(Neg(x)))); }
};

struct Relu {
  HWY_INLINE F32x16 operator()(F32x16 x) const { return ZeroIfNegative(x); }
};

// up is null for the plain activation.
template <typename Act, typename T>
HWY_INLINE void Row(const float* x, const float* up, int64_t n, T* out) {
  const Act act;
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    const F32x16 y = act(Load(x + i));
    Store(up != nullptr ? Mul(y, Load(up + i)) : y, out + i);
  }
  if (i == n) return;
  const F32x16 y = act(LoadFirst(x + i, n - i));
  StoreFirst(up != nullptr ? Mul(y, LoadFirst(up + i, n - i)) : y, out + i, n - i);
}

void ActivationRow(Activation activation, const float* x, const float* up, int64_t n, void* out, DType dtype) {
  WithWorkingType(dtype, [&](auto type) HWY_ATTR {
    auto* y = static_cast<decltype(type)*>(out);
    if (activation == Activation::kSilu) {
      Row<Silu>(x, up, n, y);
    } else {
      Row<Relu>(x, up, n, y);
    }
  });
}

}  // namespace
}  // namespace lime::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lime::cpu {

HWY_EXPORT(ActivationRow);

void GatedActivation(ThreadPool& pool, Activation activation, const float* gate, const float* up, int64_t tokens, int64_t n,
                     int64_t in_stride, void* out, DType out_dtype, int64_t out_stride) {
  const int64_t row_bytes = out_stride * ElementBytes(out_dtype);
  ParallelRows(pool, tokens, n, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) HWY_DYNAMIC_DISPATCH(ActivationRow)
    (activation, gate + t * in_stride, up != nullptr ? up + t * in_stride : nullptr, n, static_cast<char*>(out) + t * row_bytes, out_dtype);
  });
}

void PlainActivation(ThreadPool& pool, Activation activation, const float* x, int64_t tokens, int64_t n, int64_t in_stride, void* out,
                     DType out_dtype, int64_t out_stride) {
  GatedActivation(pool, activation, x, nullptr, tokens, n, in_stride, out, out_dtype, out_stride);
}

}  // namespace lime::cpu
#endif  // HWY_ONCE
