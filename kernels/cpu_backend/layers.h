// The parameters that blocks consist of, and the operators on them.
//
// The caller keeps the weights' memory alive. The residual stream and the inputs of linear layers
// are in the working dtype; everything between is fp32 (docs/reference/numerics.md).
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>

#include "kernels/cpu/linear/linear.h"
#include "kernels/cpu/row_ops.h"
#include "kernels/cpu_backend/workspace.h"
#include "planner/plan/model/block_parts.h"

namespace lime::cpu {

// A linear layer's parameters. If the layer is streamed, `weight` has only the rows that have
// arrived, from `row_begin` on. They compute their columns of the output and leave the others
// unchanged.
struct LinearLayer {
  Matrix weight;
  const std::byte* bias = nullptr;  // [outputs] working dtype, or null
  int64_t outputs = 0;              // rows of the whole layer; 0: the block has no such layer
  int64_t row_begin = 0;

  // Whether `weight` has the last rows.
  bool is_complete() const { return row_begin + weight.rows == outputs; }
  // Uses the rows that have arrived as the weight from now on.
  void PointAt(const RowsInMemory& rows);
};

struct Norm;

// A layer, and its output: [tokens, outputs] fp32.
struct LayerOut {
  const LinearLayer* layer;
  float* out;
};

// The task of a layer whose output has rows of `out_stride` floats; `working`: the working dtype.
LinearTask TaskOf(const LinearLayer& layer, float* out, int64_t out_stride, DType working);

// ws.x = round(ws.x + residual_multiplier * (product + bias)), rounded once.
LinearTask TaskOfX(const Workspace& ws, const LinearLayer& layer);

// x: [tokens, cols] working dtype. Layers with the same x share one parallel region.
void LinearOut(Workspace& ws, const std::byte* x, int64_t tokens, std::initializer_list<LayerOut> layers);

// ws.x = round(ws.x + residual_multiplier * (x w^T + bias)), rounded once.   x: [tokens, cols]
// working dtype.
void LinearAddToX(Workspace& ws, const std::byte* x, const LinearLayer& layer);

// As LinearAddToX, but with the RMSNorm `after` (if it has weights) of the product, which is
// fp32 until it is added. `after` needs whole rows: with rows of the layer, it is added after the
// last ones. With it, `scale` multiplies the sum before it is rounded.
void AddToX(Workspace& ws, const std::byte* x, const LinearLayer& layer, const Norm& after, float scale = 1);

// Rounds fp32 to the working dtype, or widens it. Both of `count` elements.
void Narrow(Workspace& ws, const float* from, int64_t count, std::byte* to);
void Widen(Workspace& ws, const std::byte* from, int64_t count, float* to);

// RMSNorm, or LayerNorm for families that have it.
struct Norm {
  const std::byte* weight = nullptr;  // [hidden]; null in a LayerNorm without affine parameters
  const std::byte* bias = nullptr;    // [hidden]; LayerNorm only
  DType dtype = DType::kF32;          // of both
  float eps = 0;
  float weight_offset = 0;  // RMSNorm only
  bool centred = false;     // LayerNorm

  // x, out: [rows, hidden] working dtype; out may be x.
  void Forward(Workspace& ws, const std::byte* x, int64_t rows, std::byte* out) const;
  // ws.x = round(scale * (ws.x + residual_multiplier * norm(ws.added))). RMSNorm only.
  void AddToX(Workspace& ws, float scale = 1) const;
  // The same in fp32. x: [ws.rows, hidden]. In place; added to `sum`, of the same size. RMSNorm only.
  void ForwardFloats(Workspace& ws, float* x) const;
  void AddToFloats(Workspace& ws, const float* x, float* sum) const;

 private:
  NormShape ShapeOf(const Workspace& ws, int64_t rows, DType of_rows) const;
};

}  // namespace lime::cpu
