#include "kernels/cpu_backend/layers.h"

#include <algorithm>
#include <array>

#include "planner/base/check.h"
#include "planner/base/float_bits.h"

namespace lime::cpu {
namespace {

// The bias of the rows that are here; `layer.bias` belongs to the whole layer.
const std::byte* BiasOf(const LinearLayer& layer, DType working) {
  return layer.bias == nullptr ? nullptr : layer.bias + layer.row_begin * ElementBytes(working);
}

}  // namespace

void LinearLayer::PointAt(const RowsInMemory& rows) {
  if (weight.dtype == DType::kF8E4M3) {  // its scales stay in memory
    weight.first_row += rows.rows.begin - row_begin;
  } else {
    weight.scales = rows.scales;
    weight.biases = rows.biases;
  }
  row_begin = rows.rows.begin;
  weight.rows = rows.rows.end - rows.rows.begin;
  weight.data = rows.weight;
}

LinearTask TaskOf(const LinearLayer& layer, float* out, int64_t out_stride, DType working) {
  return {.weight = &layer.weight, .bias = BiasOf(layer, working), .out = out + layer.row_begin, .out_stride = out_stride};
}

void LinearOut(Workspace& ws, const std::byte* x, int64_t tokens, std::initializer_list<LayerOut> layers) {
  std::array<LinearTask, 4> tasks;
  LIME_CHECK_LE(layers.size(), tasks.size());
  size_t count = 0;
  for (const auto& [layer, out] : layers) tasks[count++] = TaskOf(*layer, out, layer->outputs, ws.dtype);
  Linear(ws.pool, ws.linear, x, ws.dtype, tokens, layers.begin()->layer->weight.cols, {tasks.data(), count});
}

LinearTask TaskOfX(const Workspace& ws, const LinearLayer& layer) {
  return {.weight = &layer.weight,
          .bias = BiasOf(layer, ws.dtype),
          .add_to = ws.x + layer.row_begin * ElementBytes(ws.dtype),
          .add_scale = ws.residual_multiplier,
          .out_stride = layer.outputs};
}

void LinearAddToX(Workspace& ws, const std::byte* x, const LinearLayer& layer) {
  const LinearTask task = TaskOfX(ws, layer);
  Linear(ws.pool, ws.linear, x, ws.dtype, ws.rows, layer.weight.cols, {&task, 1});
}

void AddToX(Workspace& ws, const std::byte* x, const LinearLayer& layer, const Norm& after, float scale) {
  if (after.weight == nullptr) return LinearAddToX(ws, x, layer);
  LinearOut(ws, x, ws.rows, {{&layer, ws.added}});
  if (layer.is_complete()) after.AddToX(ws, scale);
}

void Narrow(Workspace& ws, const float* from, int64_t count, std::byte* to) {
  WithWorkingType(ws.dtype, [&](auto type) {
    using T = decltype(type);
    std::transform(from, from + count, reinterpret_cast<T*>(to), [](float x) { return FromFloat<T>(x); });
  });
}

void Widen(Workspace& ws, const std::byte* from, int64_t count, float* to) {
  WithWorkingType(ws.dtype, [&](auto type) {
    const auto* const first = reinterpret_cast<const decltype(type)*>(from);
    std::transform(first, first + count, to, [](auto x) { return ToFloat(x); });
  });
}

NormShape Norm::ShapeOf(const Workspace& ws, int64_t rows, DType of_rows) const {
  return {.rows = rows,
          .width = ws.hidden,
          .x_stride = ws.hidden,
          .out_stride = ws.hidden,
          .dtype = of_rows,
          .weight_dtype = dtype,
          .weight_offset = weight_offset};
}

void Norm::Forward(Workspace& ws, const std::byte* x, int64_t rows, std::byte* out) const {
  if (centred) {
    LayerNorm(ws.pool, ShapeOf(ws, rows, ws.dtype), x, weight, bias, eps, out);
  } else {
    RmsNorm(ws.pool, ShapeOf(ws, rows, ws.dtype), x, weight, eps, out);
  }
}

void Norm::AddToX(Workspace& ws, float scale) const {
  RmsNormAddTo(ws.pool, ShapeOf(ws, ws.rows, ws.dtype), ws.added, weight, eps, ws.residual_multiplier, ws.x, scale);
}

void Norm::ForwardFloats(Workspace& ws, float* x) const {
  RmsNorm(ws.pool, ShapeOf(ws, ws.rows, DType::kF32), x, weight, eps, x);
}

void Norm::AddToFloats(Workspace& ws, const float* x, float* sum) const {
  RmsNormAddTo(ws.pool, ShapeOf(ws, ws.rows, DType::kF32), x, weight, eps, 1.0f, sum);
}

}  // namespace lime::cpu
