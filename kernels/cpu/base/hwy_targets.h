// Selects the instruction sets that the operators are compiled for. Include it before any Highway
// header.
//
// SSE has no fused multiply-add, which the fixed orders need. CPUs with only SSE run the scalar
// code, which calls std::fma. The size of scalable vectors is not known at compile time, so sixteen
// lanes cannot be divided by it. Arm CPUs use NEON, which all of them have.
#pragma once

#ifndef HWY_DISABLED_TARGETS
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4 | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128)
#endif
