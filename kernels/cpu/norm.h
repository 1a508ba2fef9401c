// RMSNorm and LayerNorm over rows. Arithmetic in fp32, rounded once to the output's dtype.
//
// Order (portable-f32-1): element i of a row is summed into lane i % 32, in ascending i; lanes l and l + 16 are added, then the 16 as
// ReduceAdd does. Rows are shared by the threads of the pool; none of these allocates.
#pragma once

#include <cstdint>

#include "kernels/cpu/thread_pool.h"
#include "planner/base/dtype.h"

namespace lime::cpu {

// Rows of `width` elements in `dtype`; weights and biases in a dtype of their own. Both are working dtypes.
struct NormShape {
  int64_t rows = 0;
  int64_t width = 0;
  int64_t x_stride = 0;    // elements between two rows of x
  int64_t out_stride = 0;  // elements between two rows of out
  DType dtype = DType::kBF16;
  DType weight_dtype = DType::kBF16;
};

// out = round(x / sqrt(mean(x^2) + eps) * weight).   weight: [width].   out == x is allowed.
void RmsNorm(ThreadPool& pool, const NormShape& shape, const void* x, const void* weight, float eps, void* out);

// RMSNorm of every head of q or k, in place.   x: fp32 [tokens, heads, head_dim], token_stride elements between two tokens.   weight:
// [head_dim] of weight_dtype.
void HeadRmsNorm(ThreadPool& pool, float* x, int64_t tokens, int64_t heads, int64_t head_dim, int64_t token_stride, const void* weight,
                 DType weight_dtype, float eps);

// out = round((x - mean) / sqrt(variance + eps) * weight + bias), mean first, then the variance around it.
// weight, bias: [width] or null.   out == x is allowed.
void LayerNorm(ThreadPool& pool, const NormShape& shape, const void* x, const void* weight, const void* bias, float eps, void* out);

}  // namespace lime::cpu
