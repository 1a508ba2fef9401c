// The kernel set of bf16 weights and bf16 activations on x86 CPUs with AVX512-BF16. docs/reference/numerics.md: its order.
#pragma once

#include <cstdint>
#include <string>

#include "kernels/cpu/convert.h"
#include "kernels/cpu/linear_kernels.h"

#if defined(__x86_64__)
#define LIME_BF16_X86 1
#else
#define LIME_BF16_X86 0
#endif

namespace lime::cpu {

struct Bf16Kernels {
  LinearKernels linear;
  // acc[i] += w[2i] * x[2i] + w[2i + 1] * x[2i + 1] of 16 lanes, as one step of the kernels rounds it.
  void (*step)(const BF16* w, const BF16* x, float* acc);
  // A value that depends on kSpinSteps * rounds steps in independent chains: how fast steps can be at most.
  float (*spin)(int64_t rounds);
};
inline constexpr int kSpinSteps = 16;
inline constexpr int kStepOperations = 64;  // of one step, a multiplication and an addition counting two

// With the CPU's dot product; null where it has none.
const Bf16Kernels* HardwareBf16();
// The same steps as two fused multiply-adds each: slow, and there so that everything but the one instruction can be tested on every CPU
// with AVX-512. Null on others. Subnormal numbers are kept, where the instruction takes them as zero.
const Bf16Kernels* EmulatedBf16();

// Those of `numerics`; null where it multiplies bf16 too in the portable order.
const Bf16Kernels* ChooseBf16(Numerics numerics);

// What a step is by the instruction's definition: 16 times a fused multiply-add of the odd elements, then one of the even elements, each
// taking and giving zero for subnormal numbers.
void DefinedBf16Step(const BF16* w, const BF16* x, float* acc);

// "x86-avx512bf16-1" where the steps on a set of probing values have the bits of the definition. Another CPU's own rounding gets a name of
// its own, made of the bits seen, so that equal names keep meaning equal bits.
std::string Bf16NumericsId(const Bf16Kernels& kernels);

// Between the files of these kernels: what is compiled for AVX-512 and may be called only on CPUs that have it.
namespace bf16 {

#if LIME_BF16_X86
extern const Bf16Kernels kHardwareKernels;
extern const Bf16Kernels kEmulatedKernels;
#endif

// x for GEMV: [chunk][token][64 elements], padded with zeros to whole chunks.
void PackRows(const Activations& x, float* packed);
// x for GEMM, one tile: [plane][chunk][token][32 elements]; a tile's missing tokens repeat the last one.
void PackTile(const Activations& x, int64_t tile, float* packed);

}  // namespace bf16
}  // namespace lime::cpu
