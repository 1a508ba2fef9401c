// Selects the instruction sets that the operators are compiled for. Include it before any Highway
// header.
//
// SSE has no fused multiply-add, which the fixed orders need. CPUs with only SSE run the scalar
// code, which calls std::fma. The size of scalable vectors is not known at compile time, so sixteen
// lanes cannot be divided by it. Arm CPUs use NEON, which all of them have.
//
// Under a sanitizer, the portable kernels for AVX2 stand for the wider sets too, each of which takes
// minutes to compile there, unless LIME_WIDE_KERNELS is defined.
#pragma once

#if defined(LIME_SANITIZED) && !defined(LIME_WIDE_KERNELS)
#define LIME_NARROW_KERNELS 1
#else
#define LIME_NARROW_KERNELS 0
#endif

#ifndef HWY_DISABLED_TARGETS
#if LIME_NARROW_KERNELS
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4 | HWY_AVX3 | HWY_AVX3_DL | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128)
#else
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4 | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128)
#endif
#endif
