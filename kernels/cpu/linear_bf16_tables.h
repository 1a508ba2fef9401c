// Between the files of the bf16 kernels: what is compiled for AVX-512 and may be called only on CPUs that have it.
#pragma once

#include "kernels/cpu/linear_bf16.h"

#if defined(__x86_64__)
#define LIME_BF16_X86 1
#else
#define LIME_BF16_X86 0
#endif

namespace lime::cpu::bf16 {

#if LIME_BF16_X86
extern const Bf16Kernels kHardwareKernels;
extern const Bf16Kernels kEmulatedKernels;
#endif

// x for GEMV: [chunk][token][64 elements], padded with zeros to whole chunks.
void PackRows(const Activations& x, float* packed);
// x for GEMM, one tile: [plane][chunk][token][32 elements]; a tile's missing tokens repeat the last one.
void PackTile(const Activations& x, int64_t tile, float* packed);

}  // namespace lime::cpu::bf16
