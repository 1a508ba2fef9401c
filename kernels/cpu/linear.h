// Linear layers on the CPU: y = x W^T (+ bias), for every dtype a checkpoint may hold.
//
// Numerics (design.md section 5), numerics_id "portable-f32-1": every output element is one dot product over K of fp32 values. Each product
// is added, with a fused multiply-add, to one of 32 lanes, in ascending k, the lane depending on k and the weights' format alone; every
// 2,048 elements the lanes are added in one fixed tree, and these sums in ascending order. GEMV and GEMM, any number of tokens, of threads,
// any split of the rows and every instruction set give the same bits. docs/internals/kernels.md has the details. A packed weight is
// fma(q, scale, bias) in fp32; dense weights and x are exact.
//
// Where the CPU has a bf16 dot product, bf16 weights meet bf16 activations by it: numerics_id "x86-avx512bf16-1", another fixed order with
// the same promise. Everything else stays as above.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/cpu/thread_pool.h"
#include "planner/base/bytes.h"
#include "planner/base/dtype.h"

namespace lime::cpu {

// The weights of one linear layer, row-major [rows = output features, cols = input features], owned by someone else.
struct Matrix {
  int64_t rows = 0;
  int64_t cols = 0;
  DType dtype = DType::kBF16;  // kF32, kF16 or kBF16; kU32: packed quantised groups
  const void* data = nullptr;  // dense: rows * cols elements. Packed: row r is a little-endian bit stream of cols * bits bits, padded to no
                               // more than whole uint32s
  // Packed only (MLX affine): weight k of row r is scales[r][k / group_size] * q + biases[r][k / group_size].
  int bits = 0;                      // 3, 4, 6 or 8
  int group_size = 0;                // 32, 64 or 128; divides cols
  DType scale_dtype = DType::kBF16;  // dtype of scales and biases: the layer's working dtype
  const void* scales = nullptr;      // [rows, cols / group_size]
  const void* biases = nullptr;      // [rows, cols / group_size]

  // Bytes of one row as they lie in memory, scales and biases not counted.
  int64_t RowBytes() const { return dtype == DType::kU32 ? (cols * bits + 31) / 32 * 4 : cols * ElementBytes(dtype); }
  // All bytes that one use of the matrix reads.
  int64_t TotalBytes() const;
};

// One of several layers applied to the same x.
struct LinearTask {
  const Matrix* weight = nullptr;
  const void* bias = nullptr;  // [rows] in the working dtype, or null; added in fp32 after the reduction
  // Exactly one of the two:
  float* out = nullptr;    // [tokens, out_stride] fp32, overwritten
  void* add_to = nullptr;  // [tokens, out_stride] in x's dtype: add_to = round(float(add_to) + y), rounded once
  int64_t out_stride = 0;  // elements between two tokens' rows, >= weight->rows
};

// Which fixed order the linear layers follow.
enum class Numerics : uint8_t {
  kAuto,          // the fastest that this CPU has
  kPortable,      // the one that every CPU implements
  kEmulatedBf16,  // that of the bf16 dot product, without the instruction: slow, to test it on CPUs with AVX-512; portable on others
};

// Scratch memory of Linear, made once for the largest call: nothing is allocated on the token path.
class LinearWorkspace {
 public:
  LinearWorkspace(int num_threads, int64_t max_tokens, int64_t max_cols, Numerics numerics = Numerics::kAuto);
  ~LinearWorkspace();
  LinearWorkspace(const LinearWorkspace&) = delete;
  LinearWorkspace& operator=(const LinearWorkspace&) = delete;
  // What such a workspace holds, without making it.
  static Bytes BytesFor(int num_threads, int64_t max_tokens, int64_t max_cols);
  Bytes bytes() const;
  struct Impl;
  Impl& impl() { return *impl_; }

 private:
  Impl* impl_;
};

// Applies every task to x: [tokens, x_stride] of x_dtype (the working dtype), cols of all weights equal. The rows of all tasks share one
// parallel region. REQUIRES: tokens and cols within the workspace; x, weights and outputs do not overlap. Packed weights need 4-byte, dense
// weights element alignment.
void Linear(ThreadPool& pool, LinearWorkspace& ws, const void* x, DType x_dtype, int64_t tokens, int64_t x_stride,
            std::span<const LinearTask> tasks);

// The name of the fixed order of bf16 layers on this CPU.
const char* NumericsId(Numerics numerics = Numerics::kAuto);

// The instruction set chosen at run time, for people: "AVX-512", "AVX2", "NEON", ...
const char* InstructionSet();

}  // namespace lime::cpu
