// Kernels for weights of bf16, or packed ones with scales of bf16, and bf16 activations on x86 CPUs with AVX512-BF16.
// docs/reference/numerics.md defines their order.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "kernels/cpu/base/hwy_targets.h"
#include "kernels/cpu/linear/linear_kernels.h"
#include "planner/base/float_bits.h"

#if defined(__x86_64__) && !LIME_NARROW_KERNELS
#define LIME_BF16_X86 1
#else
#define LIME_BF16_X86 0
#endif

namespace lime::cpu {

struct ColumnEntry;
struct ColumnTile;

struct Bf16Kernels {
  LinearKernels linear;  // bf16 weights
  LinearKernels packed;  // packed weights with scales of bf16
  // Adds pairs of columns of bf16 to their lanes (linear_columns_kernels.h), in tiles of kMaxTileRows.
  void (*add_columns)(const ColumnTile& tile, std::span<const ColumnEntry> entries);
  // Packed columns with scales of bf16: adds pairs to the sums of their group; the sum of the `size` x
  // of a group; and adds a group, whose x have this sum, to the output. tile.scales: of the group.
  void (*add_codes)(const ColumnTile& tile, std::span<const ColumnEntry> entries);
  float (*sum_group)(const BF16* x, int64_t size);
  void (*end_group)(const ColumnTile& tile, float sum_of_x);
  // acc[i] += w[2i] * x[2i] + w[2i + 1] * x[2i + 1] for 16 lanes, rounded as one step of the
  // kernels.
  void (*step)(const BF16* w, const BF16* x, float* acc);
  // Does kSpinSteps * rounds steps in independent chains and returns a value that depends on all of
  // them. Measures the highest possible rate of steps.
  float (*spin)(int64_t rounds);
};
inline constexpr int kSpinSteps = 16;
// Operations of one step of `spin`. A multiplication and an addition count as two.
inline constexpr int kStepOperations = 64;

// Kernels with the CPU's dot product; null if it has none.
const Bf16Kernels* HardwareBf16();
// The same kernels with two fused multiply-adds for each step: slow. They make everything except
// the one instruction testable on every CPU with AVX-512; null on others. They keep subnormal
// numbers, which the instruction treats as zero.
const Bf16Kernels* EmulatedBf16();

// The kernels of `numerics` for weights of bf16; null if it multiplies them in the portable order.
const Bf16Kernels* ChooseBf16(Numerics numerics);
// The same for packed weights. kAuto multiplies them by the instruction unless the CPU is Intel's. There, it
// takes at least as long as the two multiply-adds that it replaces (docs/results/performance.md), and the scale
// of a group is one more.
const Bf16Kernels* ChoosePackedBf16(Numerics numerics);

// One step as the instruction's definition says: in each of 16 lanes a fused multiply-add of the
// odd elements, then one of the even elements. Subnormal inputs and results count as zero.
void DefinedBf16Step(const BF16* w, const BF16* x, float* acc);

// "x86-avx512bf16-1" if the steps on a set of probing values have the bits of the definition. A CPU
// that rounds differently gets another name, made of its bits, so that equal names always mean
// equal bits. `packed`: the name for a model with packed layers, "x86-avx512bf16-packed-1".
std::string Bf16NumericsId(const Bf16Kernels& kernels, bool packed = false);

// Shared by the files of these kernels. Code compiled for AVX-512 may be called only on CPUs that
// have it.
namespace bf16 {

#if LIME_BF16_X86
extern const Bf16Kernels kHardwareKernels;
extern const Bf16Kernels kEmulatedKernels;
#endif

// Packs x for GEMV with bf16 weights: [chunk][token][64 elements], padded with zeros to whole chunks.
void PackRows(const Activations& x, float* packed);
// Packs one tile of x for GEMM: [plane][chunk][token][32 elements]. If a tile has too few tokens,
// the last one is repeated.
void PackTile(const Activations& x, int64_t tile, float* packed);

}  // namespace bf16
}  // namespace lime::cpu
