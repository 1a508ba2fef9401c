// LIME's operators written with ATen, as a reference for kernels/cpu. They keep a tolerance, not
// bits, and may allocate. Arithmetic is fp32; results are rounded at the same points as in the CPU
// operators.
//
// Errors: c10::Error for shapes and dtypes that do not agree.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>

#include "planner/plan/model/model_config.h"

namespace lime::torch_ops {

// A linear layer's parameters: views of memory that the caller keeps alive.
struct LinearWeight {
  // [rows, cols] in the working dtype; packed: [rows, cols * bits / 32] int32 words
  at::Tensor weight;
  at::Tensor bias;    // [rows] working dtype, or undefined
  at::Tensor scales;  // packed: [rows, cols / group_size]; else undefined
  at::Tensor biases;  // packed: [rows, cols / group_size]; else undefined
  int64_t bits = 0;   // packed: 3, 4, 6 or 8; else 0
  int64_t group_size = 0;
};

// One layer's part of the KV pool, in the layout of kernels/cpu/attention.h.
struct KvLayer {
  // [num_pages, 2 * kv_heads * 16 * head_dim] working dtype; shared by all layers.
  at::Tensor pages;
  // [sequence slots, pages of one sequence] int32: this layer's page of
  // positions 16 i .. 16 i + 15.
  at::Tensor page_table;
  int64_t kv_heads = 0;
  int64_t head_dim = 0;
};

// x: [rows, cols] working dtype.   Returns x w^T + bias, [rows, rows of the layer] fp32.
at::Tensor Linear(const at::Tensor& x, const LinearWeight& w);
// Approximate bytes that a call needs besides its input and output.
int64_t LinearScratchBytes(int64_t cols);

// x: [rows, width] working dtype, as the result.   weight: [width] in any working dtype.
at::Tensor RmsNorm(const at::Tensor& x, const at::Tensor& weight, double eps);
// weight, bias: [width] of one dtype, or undefined.
at::Tensor LayerNorm(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, double eps);
// qk: [rows, heads * head_dim] fp32; weight: [head_dim].
at::Tensor HeadRmsNorm(const at::Tensor& qk, const at::Tensor& weight, double eps);
// qk: [rows, heads * head_dim] fp32; positions: [rows] int32; cos, sin: [positions, half] fp32. The
// first 2 half elements of every head rotate.
at::Tensor Rope(const at::Tensor& qk, int64_t head_dim, const at::Tensor& positions, const at::Tensor& cos, const at::Tensor& sin);

// k, v: [rows, kv_heads * head_dim] fp32, rounded into the pages of their sequence slots and
// positions, [rows] int32 each.
void KvAppend(const at::Tensor& k, const at::Tensor& v, const at::Tensor& slots, const at::Tensor& positions, const KvLayer& kv);
// q: [rows, heads * head_dim] fp32.   Returns [rows, heads * head_dim] working dtype.   window 0: a
// row sees every position up to its own.   scale: of the scores; 0: 1 / sqrt(head_dim).
at::Tensor Attend(const at::Tensor& q, const at::Tensor& slots, const at::Tensor& positions, const KvLayer& kv, int64_t window,
                  double scale = 0);

// gate, up: [rows, n] fp32.   Return [rows, n] fp32.   limit: threshold of kFatRelu
at::Tensor GatedActivation(const at::Tensor& gate, const at::Tensor& up, Activation activation, double limit = 0);
at::Tensor PlainActivation(const at::Tensor& x, Activation activation);

// tokens, positions: [rows] int32.   position_table: [positions + offset, hidden] or undefined.
// Returns [rows, hidden] fp32.
at::Tensor Embed(const at::Tensor& tokens, const LinearWeight& table, int64_t hidden, const at::Tensor& positions,
                 const at::Tensor& position_table, int64_t position_offset);

}  // namespace lime::torch_ops
