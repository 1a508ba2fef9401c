// The bf16 kernels with the CPU's dot product.
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

HWY_PUSH_ATTRIBUTES("avx512f,avx512bw,fma,avx512bf16")
#include "kernels/cpu/linear/linear_bf16-inl.h"

namespace lime::cpu::bf16 {
namespace {

struct HardwareDot {
  static HWY_INLINE __m512 Step(__m512 acc, __m512i w, __m512i x) {
    return _mm512_dpbf16_ps(acc, reinterpret_cast<__m512bh>(w), reinterpret_cast<__m512bh>(x));
  }
};

}  // namespace

const Bf16Kernels kHardwareKernels = KernelsOf<HardwareDot>();

}  // namespace lime::cpu::bf16
HWY_POP_ATTRIBUTES
#endif  // LIME_BF16_X86
