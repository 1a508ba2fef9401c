#include "kernels/cpu_backend/decoder.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <initializer_list>

#include "kernels/cpu/rope.h"
#include "kernels/cpu/row_ops.h"
#include "planner/base/check.h"

namespace lime::cpu {
namespace {

// The bias of the rows that are here; `layer.bias` belongs to the whole layer.
const std::byte* BiasOf(const LinearLayer& layer, DType working) {
  return layer.bias == nullptr ? nullptr : layer.bias + layer.row_begin * ElementBytes(working);
}

// A layer, and its output: [tokens, outputs] fp32.
struct LayerOut {
  const LinearLayer* layer;
  float* out;
};

// x: [tokens, cols] working dtype. Layers with the same x share one parallel region.
void LinearOut(Workspace& ws, const std::byte* x, int64_t tokens, std::initializer_list<LayerOut> layers) {
  std::array<LinearTask, 3> tasks;
  LIME_CHECK_LE(layers.size(), tasks.size());
  size_t count = 0;
  for (const auto& [layer, out] : layers) {
    tasks[count++] = {
        .weight = &layer->weight, .bias = BiasOf(*layer, ws.dtype), .out = out + layer->row_begin, .out_stride = layer->outputs};
  }
  Linear(ws.pool, ws.linear, x, ws.dtype, tokens, layers.begin()->layer->weight.cols, {tasks.data(), count});
}

// ws.x = round(ws.x + x w^T + bias), rounded once.   x: [tokens, cols] working dtype.
void LinearAddToX(Workspace& ws, const std::byte* x, const LinearLayer& layer) {
  const LinearTask task{.weight = &layer.weight,
                        .bias = BiasOf(layer, ws.dtype),
                        .add_to = ws.x + layer.row_begin * ElementBytes(ws.dtype),
                        .out_stride = layer.outputs};
  Linear(ws.pool, ws.linear, x, ws.dtype, ws.rows, layer.weight.cols, {&task, 1});
}

}  // namespace

void LinearLayer::PointAt(const RowsInMemory& rows) {
  row_begin = rows.rows.begin;
  weight.rows = rows.rows.end - rows.rows.begin;
  weight.data = rows.weight;
  weight.scales = rows.scales;
  weight.biases = rows.biases;
}

AttentionShape AttentionShapeOf(int64_t heads, int64_t head_dim, int64_t window) {
  return {.heads = heads,
          .q_stride = heads * head_dim,
          .out_stride = heads * head_dim,
          .window = window,
          .scale = 1.0f / std::sqrt(static_cast<float>(head_dim))};
}

void Norm::Forward(Workspace& ws, const std::byte* x, int64_t rows, std::byte* out) const {
  const NormShape shape{
      .rows = rows, .width = ws.hidden, .x_stride = ws.hidden, .out_stride = ws.hidden, .dtype = ws.dtype, .weight_dtype = dtype};
  if (centred) {
    LayerNorm(ws.pool, shape, x, weight, bias, static_cast<float>(eps), out);
  } else {
    RmsNorm(ws.pool, shape, x, weight, static_cast<float>(eps), out);
  }
}

void EmbeddingBlock::Forward(Workspace& ws) const {
  const LearnedPositions learned{
      .table = position_table, .offset = position_offset, .positions = position_table == nullptr ? nullptr : ws.positions};
  EmbedTokens(ws.pool, table.weight, ws.tokens, ws.rows, learned, ws.x, ws.dtype, ws.hidden);  // [tokens, hidden]
}

// ---- Attention

absl::Status AttentionBlock::Forward(Workspace& ws, const KvView& kv) const {
  norm.Forward(ws, ws.x, ws.rows, ws.normed);                               // [tokens, hidden]
  LinearOut(ws, ws.normed, ws.rows, {{&q, ws.q}, {&k, ws.k}, {&v, ws.v}});  // [tokens, heads * head_dim], [tokens, kv_heads * head_dim]
  LIME_RETURN_IF_ERROR(Attend(ws, kv));                                     // [tokens, heads * head_dim]
  LinearAddToX(ws, ws.attended, o);                                         // residual add in the epilogue, rounded once
  return absl::OkStatus();
}

absl::Status AttentionBlock::Append(Workspace& ws, const KvView& kv) const {
  for (int64_t row = 0; row < ws.rows; ++row) {
    if (kv.page_table[ws.slots[row] * kv.table_stride + ws.positions[row] / kPagePositions] < 0)
      return absl::InternalError(absl::StrCat("position ", ws.positions[row], " of sequence slot ", ws.slots[row], " has no KV page"));
  }
  const int64_t q_cols = heads * head_dim, kv_cols = kv_heads * head_dim;
  if (q_norm.weight != nullptr) {  // over head_dim
    HeadRmsNorm(ws.pool, ws.q, ws.rows, heads, head_dim, q_cols, q_norm.weight, q_norm.dtype, static_cast<float>(norm_eps));
    HeadRmsNorm(ws.pool, ws.k, ws.rows, kv_heads, head_dim, kv_cols, k_norm.weight, k_norm.dtype, static_cast<float>(norm_eps));
  }
  if (ws.rope) {
    ApplyRope(ws.pool, ws.q, ws.rows, heads, q_cols, ws.rope->cos(), ws.rope->sin(), ws.rope->half(), ws.positions);
    ApplyRope(ws.pool, ws.k, ws.rows, kv_heads, kv_cols, ws.rope->cos(), ws.rope->sin(), ws.rope->half(), ws.positions);
  }
  KvAppend(ws.pool, kv, ws.attention_rows(), ws.k, ws.v, kv_cols);
  return absl::OkStatus();
}

absl::Status AttentionBlock::Attend(Workspace& ws, const KvView& kv) const {
  AttentionPieces pieces;
  if (ws.pieces_attended > 0 || ws.has_records) {
    pieces.begin = ws.pieces_attended;
    if (ws.has_records) pieces.covered = ws.covered;
  } else if (ws.pieces_attended < 0) {
    LIME_RETURN_IF_ERROR(Append(ws, kv));
  }
  cpu::Attend(ws.pool, ws.attention, kv, ws.attention_rows(), ws.q, AttentionShapeOf(heads, head_dim, window), ws.attended, pieces);
  ws.pieces_attended = -1;
  ws.has_records = false;
  return absl::OkStatus();
}

absl::Status AttentionBlock::Queries(Workspace& ws, const KvView& kv) const {
  if (ws.pieces_attended < 0) LIME_RETURN_IF_ERROR(Append(ws, kv));
  ws.pieces_attended = std::max<int64_t>(0, ws.pieces_attended);
  return absl::OkStatus();
}

absl::Status AttentionBlock::ContinueFromRecords(Workspace& ws, const float* records) const {
  if (ws.pieces_attended != 0 || ws.has_records)
    return absl::InternalError(absl::StrCat("records came after attention to ", ws.pieces_attended, " pieces of KV"));
  SetCarried(ws.attention, ws.attention_rows(), AttentionShapeOf(heads, head_dim, window), head_dim, ws.covered, records);
  ws.has_records = true;
  return absl::OkStatus();
}

absl::Status AttentionBlock::AttendToPieces(Workspace& ws, const KvView& kv, const AttentionPieces& pieces) const {
  LIME_RETURN_IF_ERROR(Queries(ws, kv));
  if (pieces.begin != ws.pieces_attended || ws.has_records)
    return absl::InternalError(
        absl::StrCat("attention is to continue at piece ", pieces.begin, " of KV, but it has covered ", ws.pieces_attended, " pieces"));
  cpu::Attend(ws.pool, ws.attention, kv, ws.attention_rows(), ws.q, AttentionShapeOf(heads, head_dim, window), ws.attended, pieces);
  ws.pieces_attended = pieces.end;
  return absl::OkStatus();
}

absl::Status AttentionBlock::ForwardRows(TensorRole role, Workspace& ws, const KvView& kv) const {
  switch (role) {
    case TensorRole::kQ:
      if (q.row_begin == 0) norm.Forward(ws, ws.x, ws.rows, ws.normed);
      LinearOut(ws, ws.normed, ws.rows, {{&q, ws.q}});
      break;
    case TensorRole::kK:
      LinearOut(ws, ws.normed, ws.rows, {{&k, ws.k}});
      break;
    case TensorRole::kV:
      LinearOut(ws, ws.normed, ws.rows, {{&v, ws.v}});
      break;
    default:
      if (o.row_begin == 0) LIME_RETURN_IF_ERROR(Attend(ws, kv));
      LinearAddToX(ws, ws.attended, o);
  }
  return absl::OkStatus();
}

// ---- MLP

void MlpBlock::Forward(Workspace& ws) const {
  norm.Forward(ws, ws.x, ws.rows, ws.normed);  // [tokens, hidden]
  if (gated()) {
    LinearOut(ws, ws.normed, ws.rows, {{&gate, ws.gate}, {&up, ws.up}});  // [tokens, intermediate] each
  } else {
    LinearOut(ws, ws.normed, ws.rows, {{&up, ws.up}});
  }
  Activate(ws);
  LinearAddToX(ws, ws.mixed, down);
}

void MlpBlock::Activate(Workspace& ws) const {
  const int64_t n = ws.intermediate;
  GatedActivation(ws.pool, activation, gated() ? ws.gate : ws.up, gated() ? ws.up : nullptr, ws.rows, n, n, ws.mixed, ws.dtype, n);
}

void MlpBlock::ForwardRows(TensorRole role, Workspace& ws) const {
  switch (role) {
    case TensorRole::kGate:
      if (gate.row_begin == 0) norm.Forward(ws, ws.x, ws.rows, ws.normed);
      return LinearOut(ws, ws.normed, ws.rows, {{&gate, ws.gate}});
    case TensorRole::kUp:
      if (!gated() && up.row_begin == 0) norm.Forward(ws, ws.x, ws.rows, ws.normed);
      return LinearOut(ws, ws.normed, ws.rows, {{&up, ws.up}});
    default:
      if (down.row_begin == 0) Activate(ws);
      return LinearAddToX(ws, ws.mixed, down);
  }
}

// ---- Head

void HeadBlock::Forward(Workspace& ws) const {
  Select(ws);
  LinearOut(ws, ws.head_x, ws.logit_rows, {{&output, ws.logits}});  // [logit rows, vocab]
}

void HeadBlock::Select(Workspace& ws) const {
  const int64_t row_bytes = ws.hidden * ElementBytes(ws.dtype);
  for (int64_t i = 0; i < ws.logit_rows; ++i)  // [logit rows, hidden]
    std::memcpy(ws.head_x + i * row_bytes, ws.x + ws.head_rows[i] * row_bytes, static_cast<size_t>(row_bytes));
  if (has_norm) norm.Forward(ws, ws.head_x, ws.logit_rows, ws.head_x);
  ws.head_selected = true;
}

void HeadBlock::ForwardRows(Workspace& ws) const {
  if (!ws.head_selected) Select(ws);
  LinearOut(ws, ws.head_x, ws.logit_rows, {{&output, ws.logits}});
}

}  // namespace lime::cpu
