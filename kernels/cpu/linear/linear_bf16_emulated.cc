// The bf16 kernels with two fused multiply-adds instead of the dot product.
#include "kernels/cpu/linear/linear_bf16.h"

#if LIME_BF16_X86
#include <hwy/base.h>
#include <immintrin.h>

#include <algorithm>    // IWYU pragma: keep; for linear_bf16-inl.h
#include <bit>          // IWYU pragma: keep
#include <cstring>      // IWYU pragma: keep
#include <type_traits>  // IWYU pragma: keep

#include "kernels/cpu/linear/linear_columns_kernels.h"  // IWYU pragma: keep
#include "planner/base/small_floats.h"                  // IWYU pragma: keep

HWY_PUSH_ATTRIBUTES("avx512f,avx512bw,fma")
#include "kernels/cpu/linear/linear_bf16-inl.h"

namespace lime::cpu::bf16 {
namespace {

struct EmulatedDot {
  static HWY_INLINE __m512 Odd(__m512i v) {
    return _mm512_castsi512_ps(_mm512_and_si512(v, _mm512_set1_epi32(static_cast<int>(0xffff0000))));
  }
  static HWY_INLINE __m512 Even(__m512i v) { return _mm512_castsi512_ps(_mm512_slli_epi32(v, 16)); }

  static HWY_INLINE __m512 Step(__m512 acc, __m512i w, __m512i x) {
    return _mm512_fmadd_ps(Even(w), Even(x), _mm512_fmadd_ps(Odd(w), Odd(x), acc));
  }
};

}  // namespace

const Bf16Kernels kEmulatedKernels = KernelsOf<EmulatedDot>();

}  // namespace lime::cpu::bf16
HWY_POP_ATTRIBUTES
#endif  // LIME_BF16_X86
