// Operators that process rows one by one: fp32 inside, rounded once to the output's dtype. The
// threads of the pool share the rows. No operator allocates.
#pragma once

#include <cstdint>

#include "kernels/cpu/base/thread_pool.h"
#include "kernels/cpu/linear/linear.h"
#include "planner/base/dtype.h"
#include "planner/plan/model/model_config.h"

namespace lime::cpu {

// ---- Rows of the embedding into the residual stream

// Learned positions, added to the token's row.
struct LearnedPositions {
  const void* table = nullptr;         // [positions + offset, cols], working dtype; null: none
  int64_t offset = 0;                  // row of position 0
  const int32_t* positions = nullptr;  // [tokens]
};

// out[t] = row ids[t] of `table`, in out_dtype, rounded once. A dense row is used directly
// (table.dtype == out_dtype copies bits); packed groups are fused scale * q + bias. The row of the
// position is added in fp32, and the sum times `multiplier`, before the rounding. out: [tokens,
// out_stride]. REQUIRES: every id and position lies within its table.
void EmbedTokens(ThreadPool& pool, const Matrix& table, const int32_t* ids, int64_t tokens, const LearnedPositions& learned, void* out,
                 DType out_dtype, int64_t out_stride, float multiplier = 1.0f);

// ---- RMSNorm and LayerNorm
//
// Order (portable-f32-1): element i of a row is added to lane i % 32, in ascending i. Then lanes l
// and l + 16 are added, and the remaining 16 as in ReduceAdd.

// Rows of `width` elements in `dtype`; weights and biases in `weight_dtype`. Both are working
// dtypes.
struct NormShape {
  int64_t rows = 0;
  int64_t width = 0;
  int64_t x_stride = 0;    // elements between two rows of x
  int64_t out_stride = 0;  // elements between two rows of out
  DType dtype = DType::kBF16;
  DType weight_dtype = DType::kBF16;
  float weight_offset = 0;  // RMSNorm: added to the weights in fp32
};

// out = round(x / sqrt(mean(x^2) + eps) * weight).   weight: [width].   out == x is allowed.
void RmsNorm(ThreadPool& pool, const NormShape& shape, const void* x, const void* weight, float eps, void* out);

// x = round(scale * (x + multiplier * (y / sqrt(mean(y^2) + eps) * weight))), rounded once.   y: fp32
// [rows, width]; x: of shape.dtype, out_stride elements between two rows.
void RmsNormAddTo(ThreadPool& pool, const NormShape& shape, const float* y, const void* weight, float eps, float multiplier, void* x,
                  float scale = 1);

// Heads of q or k: fp32 [tokens, heads, head_dim].
struct HeadShape {
  int64_t tokens = 0;
  int64_t heads = 0;
  int64_t head_dim = 0;
  int64_t stride = 0;  // elements between two tokens
};

// RMSNorm of every head, in place.   weight: [head_dim] of weight_dtype, to which weight_offset is
// added; null: all are 1.
void HeadRmsNorm(ThreadPool& pool, const HeadShape& shape, float* x, const void* weight, DType weight_dtype, float eps,
                 float weight_offset = 0);

// out = round((x - mean) / sqrt(variance + eps) * weight + bias). Computes the mean first, then the
// variance around it.
// weight, bias: [width] or null.   out == x is allowed.
void LayerNorm(ThreadPool& pool, const NormShape& shape, const void* x, const void* weight, const void* bias, float eps, void* out);

// ---- Rotation of q and k (rope.h)

// cos and sin: [positions, half].
struct Rotations {
  const float* cos = nullptr;
  const float* sin = nullptr;
  int64_t half = 0;  // pairs of a head that rotate
};

// Rotates the first 2 half elements of every head in place: (a, b) = (x[d], x[d + half]) becomes
// (a cos - b sin, b cos + a sin). The second product is computed first, then one fused
// multiply-add. positions: for each token, its row of the tables.
void ApplyRope(ThreadPool& pool, const HeadShape& shape, float* x, const Rotations& rotations, const int32_t* positions);

// Multiplies the heads of each token by factors[positions[token]].
void ScaleHeads(ThreadPool& pool, const HeadShape& shape, float* x, const float* factors, const int32_t* positions);

// ---- Activations of the MLP
//
//   kSilu           x / (1 + exp(-x))
//   kRelu           0 for x < 0, else x
//   kGelu           x times the normal distribution of x
//   kGeluTanh       x / (1 + exp(-2 sqrt(2 / pi) (x + 0.044715 x^3)))
//   kClampedSwiglu  (u + 1) * g * sigmoid(1.702 g) with g = min(gate, limit), u = up within +-limit
//   kFatRelu        0 for x <= limit, else x
//   kDoubleRelu     kRelu of gate and of up

// out[t][i] = round(act(gate[t][i]) * up[t][i]); without the product if `up` is null.   gate, up:
// fp32 [tokens, in_stride]; out: [tokens, out_stride] of out_dtype; n elements in each row. `limit`:
// of kClampedSwiglu and kFatRelu.  REQUIRES: up, for the last three
void GatedActivation(ThreadPool& pool, Activation activation, const float* gate, const float* up, int64_t tokens, int64_t n,
                     int64_t in_stride, void* out, DType out_dtype, int64_t out_stride, float limit = 0);

// The same, where gate and up alternate in x: fp32 [tokens, in_stride], element 2 i is a gate.
void AlternatingActivation(ThreadPool& pool, Activation activation, const float* x, int64_t tokens, int64_t n, int64_t in_stride, void* out,
                           DType out_dtype, int64_t out_stride, float limit = 0);

// ---- Logits

// x = x / divisor for n elements of every row; rows are `stride` elements apart.
void DivideRows(ThreadPool& pool, float* x, int64_t rows, int64_t n, int64_t stride, float divisor);

// x = cap tanh(x / cap) for n elements of every row; rows are `stride` elements apart.
void CapRows(ThreadPool& pool, float* x, int64_t rows, int64_t n, int64_t stride, float cap);

}  // namespace lime::cpu
