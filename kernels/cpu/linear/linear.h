// Linear layers on the CPU: y = x W^T (+ bias), for every dtype a checkpoint may hold.
//
// Numerics (docs/reference/numerics.md), numerics_id "portable-f32-1": every output element is one
// dot product over K of fp32 values. A fused multiply-add adds each product to one of 32 lanes, in
// ascending k. The lane depends only on k and the weights' format. After every 2,048 elements the
// lanes are added in one fixed tree, and these sums in ascending order. So GEMV and GEMM, any
// number of tokens or threads, any split of the rows and every instruction set give the same bits.
// A packed weight is fma(q, scale, bias) in fp32, a weight of mxfp4 or FP8 is the product with its
// scale, rounded to fp32; dense weights and x are exact.
//
// If the CPU has a bf16 dot product, it multiplies bf16 weights by bf16 activations: numerics_id
// "x86-avx512bf16-1", another fixed order with the same guarantee. It multiplies q of packed weights
// with scales of bf16, fp4 and fp8 by bf16 activations in a third order, "x86-avx512bf16-packed-1", if
// its dot product is faster than the multiply-adds that it replaces. All other layers keep the order above. docs/internals/kernels.md
// explains these orders.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/cpu/base/thread_pool.h"
#include "planner/base/bytes.h"
#include "planner/base/dtype.h"

namespace lime::cpu {

// The weights of one linear layer, row-major [rows = output features, cols = input features]. The
// caller owns the memory.
struct Matrix {
  int64_t rows = 0;
  int64_t cols = 0;
  // kF32, kF16 or kBF16: dense. kU32: affine groups. kU8: mxfp4. kF8E4M3: fp8 with scales.
  DType dtype = DType::kBF16;
  // Dense: rows * cols elements. Affine: row r is a little-endian bit stream of cols * bits bits,
  // padded to whole uint32s. mxfp4: two fp4 in a byte, the lower bits first. fp8: a byte each.
  const void* data = nullptr;
  // Affine (MLX): weight k of row r is scales[r][g] * q + biases[r][g], g = k / group_size.
  // mxfp4: fp4 * 2^(scales[r][g] - 127). A scale of 255 is NaN, and so are its weights.
  int bits = 0;                      // affine: 3, 4, 6 or 8; mxfp4: 4; fp8: 8
  int group_size = 0;                // affine: 32, 64 or 128; mxfp4: 32; fp8: 128. Divides cols, but for fp8
  DType scale_dtype = DType::kBF16;  // of scales and biases. Affine: the layer's working dtype; mxfp4: kU8
  const void* scales = nullptr;      // [rows, cols / group_size]
  const void* biases = nullptr;      // [rows, cols / group_size]; affine only
  // fp8: weight k of row r is fp8 * scales[(first_row + r) / scale_rows][k / group_size], or [0] if
  // scale_cols is 1. NaN stays NaN. cols is a multiple of 32.
  int64_t scale_rows = 1;  // rows that share their scales
  int64_t scale_cols = 0;  // scales of a row: 1, or cols / group_size rounded up
  int64_t first_row = 0;   // of `data`, among the rows of `scales`

  // Bytes of one row in memory, without scales and biases.
  int64_t RowBytes() const { return IsPacked() ? (cols * bits + 31) / 32 * 4 : cols * ElementBytes(dtype); }
  bool IsPacked() const { return !IsWorkingDType(dtype); }
  int64_t Groups() const { return (cols + group_size - 1) / group_size; }  // of a row. REQUIRES: IsPacked().
  // Bytes that one use of the matrix reads.
  int64_t TotalBytes() const;
};

// One of several layers applied to the same x.
struct LinearTask {
  const Matrix* weight = nullptr;
  const void* bias = nullptr;  // [rows] in the working dtype, or null; added in fp32 at the end
  // Exactly one of these two is set:
  float* out = nullptr;  // [tokens, out_stride] fp32, overwritten
  // [tokens, out_stride] in x's dtype: add_to = round(float(add_to) + add_scale * y), the product
  // rounded to fp32, the sum to the dtype.
  void* add_to = nullptr;
  float add_scale = 1.0f;
  int64_t out_stride = 0;  // elements between two tokens' rows, >= weight->rows
};

// One x and the layers applied to it, as in Linear.
struct LinearCall {
  const void* x = nullptr;            // [tokens, x_stride] of the working dtype
  int64_t tokens = 0;                 // at least 1
  int64_t x_stride = 0;               // elements
  std::span<const LinearTask> tasks;  // at least one; all have the same cols
};

// The fixed order that the linear layers follow.
enum class Numerics : uint8_t {
  kAuto,      // the fastest orders of this CPU
  kPortable,  // the order that every CPU implements
  // The orders of the bf16 dot product wherever the CPU has it, packed weights included; on other CPUs
  // kPortable.
  kBf16Dot,
  // The orders of the bf16 dot product, without the instruction: slow, for tests on CPUs with
  // AVX-512. On other CPUs kPortable.
  kEmulatedBf16,
};

// Scratch memory of Linear, allocated once for the largest call: computing a token allocates
// nothing.
class LinearWorkspace {
 public:
  LinearWorkspace(int num_threads, int64_t max_tokens, int64_t max_cols, Numerics numerics = Numerics::kAuto);
  ~LinearWorkspace();
  LinearWorkspace(const LinearWorkspace&) = delete;
  LinearWorkspace& operator=(const LinearWorkspace&) = delete;
  // Bytes of such a workspace, without creating it.
  static Bytes BytesFor(int num_threads, int64_t max_tokens, int64_t max_cols);
  Bytes bytes() const;
  struct Impl;
  Impl& impl() { return *impl_; }

 private:
  Impl* impl_;
};

// Applies every task to x: [tokens, x_stride] of x_dtype (the working dtype). The rows of all tasks
// share one parallel region. REQUIRES: all weights have the same cols; tokens and cols fit the
// workspace; x, weights and outputs do not overlap; affine weights are aligned to 4 bytes, dense
// weights and scales to their element.
void Linear(ThreadPool& pool, LinearWorkspace& ws, const void* x, DType x_dtype, int64_t tokens, int64_t x_stride,
            std::span<const LinearTask> tasks);

// Linear for every call, with the same bits. Calls of few tokens share parallel regions; x is packed
// once for neighbours that have the same. The calls may differ in cols. REQUIRES: as Linear; no
// output of a call is x of another.
void Linear(ThreadPool& pool, LinearWorkspace& ws, DType x_dtype, std::span<const LinearCall> calls);

// The numerics_id on this CPU of a model of bf16; `packed`: it has packed layers.
const char* NumericsId(Numerics numerics = Numerics::kAuto, bool packed = false);

// The instruction set chosen at run time, for people: "AVX-512", "AVX2", "NEON", ...
const char* InstructionSet();

}  // namespace lime::cpu
