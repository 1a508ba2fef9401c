// Which instruction sets the operators are compiled for. Include before any Highway header.
//
// SSE has no fused multiply-add, which our fixed order of arithmetic is made of: such CPUs take the scalar code, which calls std::fma.
// Scalable vectors have no size that sixteen lanes could be split by at compile time: Arm CPUs take NEON, which all of them have.
#pragma once

#ifndef HWY_DISABLED_TARGETS
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4 | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128)
#endif
