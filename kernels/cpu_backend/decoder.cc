#include "kernels/cpu_backend/decoder.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/cpu/rope.h"
#include "kernels/cpu/row_ops.h"

namespace lime::cpu {

// ---- Embedding

void EmbeddingBlock::Bind(const BlockBinder& binder) {
  table_ = binder.Linear(TensorRole::kTokenEmbedding, config_.hidden_size);
  position_table_ = binder.Data(TensorRole::kPositionEmbedding);
  layer_table_ = binder.Linear(TensorRole::kLayerEmbedding, config_.layer_input_cols);
  layer_projection_ = binder.Linear(TensorRole::kLayerProjection, config_.hidden_size);
  layer_norm_ = binder.Small(TensorRole::kLayerInputNorm);
}

absl::Status EmbeddingBlock::Forward(const StepMemory& memory) {
  LookUpLayers(memory.ws);
  Embed(memory.ws);
  MakeLayerInputs(memory.ws);
  return absl::OkStatus();
}

void EmbeddingBlock::LookUpLayers(Workspace& ws) const {
  if (config_.layer_inputs == 0) return;
  EmbedTokens(ws.pool, layer_table_.weight, ws.tokens, ws.rows, {}, ws.layer_rows, DType::kF32, config_.layer_input_cols,
              std::sqrt(static_cast<float>(config_.layer_inputs)));  // [tokens, layers, layer_inputs]
}

// (row + norm(product / sqrt(hidden))) / sqrt(2), in fp32, rounded once.
void EmbeddingBlock::MakeLayerInputs(Workspace& ws) const {
  const int64_t cols = config_.layer_inputs, all = config_.layer_input_cols;
  if (cols == 0) return;
  LinearOut(ws, ws.x, ws.rows, {{&layer_projection_, ws.layer_products}});
  const float root = std::sqrt(static_cast<float>(ws.hidden)), half = std::sqrt(0.5f);
  DivideRows(ws.pool, ws.layer_products, ws.rows, all, all, root);
  HeadRmsNorm(ws.pool, {.tokens = ws.rows, .heads = all / cols, .head_dim = cols, .stride = all}, ws.layer_products, layer_norm_.data,
              layer_norm_.dtype, static_cast<float>(config_.norm_eps));
  const Bytes row_bytes = cols * ElementBytes(ws.dtype);
  ParallelRows(ws.pool, ws.rows, all, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      float* const sum = ws.layer_products + row * all;
      for (int64_t i = 0; i < all; ++i) sum[i] = (sum[i] + ws.layer_rows[row * all + i]) * half;
      for (int64_t layer = 0; layer < all / cols; ++layer) Narrow(ws, sum + layer * cols, cols, ws.layer_inputs(layer) + row * row_bytes);
    }
  });
}

void EmbeddingBlock::Embed(Workspace& ws) const {
  const LearnedPositions learned{
      .table = position_table_, .offset = config_.position_offset, .positions = position_table_ == nullptr ? nullptr : ws.positions};
  EmbedTokens(ws.pool, table_.weight, ws.tokens, ws.rows, learned, ws.x, ws.dtype, ws.hidden,
              static_cast<float>(config_.embedding_multiplier));  // [tokens, hidden]
}

absl::Status EmbeddingBlock::ForwardRows(const RowsInMemory& /*rows*/, const StepMemory& /*memory*/) {
  return absl::OkStatus();
}

absl::Status EmbeddingBlock::ForwardGiven(const RowsInMemory& rows, const StepMemory& memory) {
  Workspace& ws = memory.ws;
  if (rows.rows.end - rows.rows.begin < ws.rows)
    return Invalid(rows.rows.end - rows.rows.begin, " rows of the embedding were given for a batch of ", ws.rows);
  LookUpLayers(ws);
  std::iota(ws.tokens, ws.tokens + ws.rows, 0);
  table_.PointAt(rows);
  Embed(ws);
  MakeLayerInputs(ws);
  return absl::OkStatus();
}

// ---- Attention

AttentionShape AttentionShapeOf(const ModelConfig& config, int64_t layer) {
  const LayerConfig& sizes = config.layer(layer);
  const int64_t q_cols = config.q_cols(layer);
  return {.heads = config.num_heads,
          .q_stride = q_cols,
          .out_stride = config.latent_attention ? config.num_heads * config.latent_attention->rank : q_cols,
          .window = sizes.window,
          .scale = config.score_scale != 0 ? static_cast<float>(config.score_scale) : 1.0f / std::sqrt(static_cast<float>(sizes.head_dim)),
          .cap = static_cast<float>(config.score_cap)};
}

AttentionShape AttentionBlock::ShapeOf(const Workspace& ws) const {
  AttentionShape shape = AttentionShapeOf(config_, layer_);
  if (config_.attention_gate)
    shape.gate = {.data = ws.q_and_gate + head_dim(), .stride = 2 * config_.q_cols(layer_), .head_stride = 2 * head_dim()};
  shape.sinks = {.data = sinks_.data, .dtype = sinks_.dtype};
  return shape;
}

void AttentionBlock::Bind(const BlockBinder& binder) {
  norm_ = binder.ReadNorm(config_);
  q_ = binder.Linear(TensorRole::kQ, config_.hidden_size);
  k_ = binder.Linear(TensorRole::kK, config_.hidden_size);
  v_ = binder.Linear(TensorRole::kV, config_.hidden_size);
  by_head_ = binder.Linear(TensorRole::kQkvByHead, config_.hidden_size);
  o_ = binder.Linear(TensorRole::kO, config_.q_cols(layer_));
  q_norm_ = binder.Small(TensorRole::kQNorm);
  k_norm_ = binder.Small(TensorRole::kKNorm);
  after_norm_ = binder.ReadNorm(config_, TensorRole::kAfterNorm);
  mlp_norm_ = binder.ReadNorm(config_, TensorRole::kMlpNorm);
  sinks_ = binder.Small(TensorRole::kSinks);
}

absl::Status AttentionBlock::Forward(const StepMemory& memory) {
  Workspace& ws = memory.ws;
  Normalise(ws);  // [tokens, hidden]
  // [tokens, heads * head_dim], twice that with a gate; [tokens, kv_heads * head_dim]
  if (config_.qkv_by_head) {
    LinearOut(ws, ws.normed, ws.rows, {{&by_head_, ws.by_head}});
    SplitHeads(ws);
  } else if (config_.layer(layer_).takes_kv) {
    LinearOut(ws, ws.normed, ws.rows, {{&q_, QOut(ws)}});
  } else if (config_.layer(layer_).keys_are_values) {
    LinearOut(ws, ws.normed, ws.rows, {{&q_, QOut(ws)}, {&k_, ws.k}});
  } else {
    LinearOut(ws, ws.normed, ws.rows, {{&q_, QOut(ws)}, {&k_, ws.k}, {&v_, ws.v}});
  }
  LIME_RETURN_IF_ERROR(Attend(ws, memory.kv.layer(layer_)));  // [tokens, heads * head_dim]
  AddToX(ws, ws.attended, o_, after_norm_);                   // residual add in the epilogue, rounded once
  return absl::OkStatus();
}

void AttentionBlock::Normalise(Workspace& ws) const {
  norm_.Forward(ws, ws.x, ws.rows, ws.normed);
  if (!config_.parallel_halves) return;
  if (config_.parallel_norms) {
    mlp_norm_.Forward(ws, ws.x, ws.rows, ws.mlp_input());
  } else {
    std::memcpy(ws.mlp_input(), ws.normed, static_cast<size_t>(ws.rows * ws.hidden * ElementBytes(ws.dtype)));
  }
}

// Each key head has its queries, its key and its value.
void AttentionBlock::SplitHeads(Workspace& ws) const {
  const int64_t queries = config_.num_heads / kv_heads() * head_dim(), n = head_dim(), all = kv_heads();
  ParallelRows(ws.pool, ws.rows, by_head_.outputs, [&](int64_t begin, int64_t end) {
    for (int64_t head = begin * all; head < end * all; ++head) {
      const float* const from = ws.by_head + head * (queries + 2 * n);
      std::copy_n(from, queries, ws.q + head * queries);
      std::copy_n(from + queries, n, ws.k + head * n);
      std::copy_n(from + queries + n, n, ws.v + head * n);
    }
  });
}

void AttentionBlock::TakeQueries(Workspace& ws) const {
  const int64_t heads = config_.num_heads, n = head_dim();
  ParallelRows(ws.pool, ws.rows, 2 * heads * n, [&](int64_t begin, int64_t end) {
    for (int64_t head = begin * heads; head < end * heads; ++head) std::copy_n(ws.q_and_gate + 2 * head * n, n, ws.q + head * n);
  });
}

absl::Status AttentionBlock::CheckPages(const Workspace& ws, const KvView& kv) {
  for (int64_t row = 0; row < ws.rows; ++row) {
    if (kv.page_table[ws.slots[row] * kv.table_stride + ws.positions[row] / kPagePositions] < 0)
      return absl::InternalError(absl::StrCat("position ", ws.positions[row], " of sequence slot ", ws.slots[row], " has no KV page"));
  }
  return absl::OkStatus();
}

void AttentionBlock::Rotate(Workspace& ws) const {
  const int32_t rope = config_.layer(layer_).rope;
  if (rope < 0) return;
  const HeadShape queries{.tokens = ws.rows, .heads = config_.num_heads, .head_dim = head_dim(), .stride = config_.q_cols(layer_)};
  const HeadShape keys{.tokens = ws.rows, .heads = kv_heads(), .head_dim = head_dim(), .stride = config_.kv_cols(layer_)};
  const RopeTable& table = ws.ropes[static_cast<size_t>(rope)];
  const Rotations rotations{.cos = table.cos(), .sin = table.sin(), .half = table.half()};
  ApplyRope(ws.pool, queries, ws.q, rotations, ws.rotations());
  if (!config_.layer(layer_).takes_kv) ApplyRope(ws.pool, keys, ws.k, rotations, ws.rotations());
  if (table.query_factors() != nullptr) ScaleHeads(ws.pool, queries, ws.q, table.query_factors(), ws.positions);
}

absl::Status AttentionBlock::Append(Workspace& ws, const KvView& kv) const {
  LIME_RETURN_IF_ERROR(CheckPages(ws, kv));
  if (config_.attention_gate) TakeQueries(ws);
  const int64_t q_cols = config_.q_cols(layer_), kv_cols = config_.kv_cols(layer_);
  const LayerConfig& layer = config_.layer(layer_);
  const HeadShape queries{.tokens = ws.rows, .heads = config_.num_heads, .head_dim = head_dim(), .stride = q_cols};
  const HeadShape keys{.tokens = ws.rows, .heads = kv_heads(), .head_dim = head_dim(), .stride = kv_cols};
  if (layer.keys_are_values) std::copy_n(ws.k, ws.rows * kv_cols, ws.v);
  if (config_.value_norm && !layer.takes_kv) HeadRmsNorm(ws.pool, keys, ws.v, nullptr, DType::kF32, static_cast<float>(config_.norm_eps));
  if (q_norm_.data != nullptr) {  // over head_dim, or over all heads
    const float eps = static_cast<float>(config_.norm_eps), offset = static_cast<float>(config_.norm_offset);
    const auto normed = [&](HeadShape shape) {
      if (config_.qk_norm_all_heads) shape.head_dim *= std::exchange(shape.heads, 1);
      return shape;
    };
    HeadRmsNorm(ws.pool, normed(queries), ws.q, q_norm_.data, q_norm_.dtype, eps, offset);
    if (!layer.takes_kv) HeadRmsNorm(ws.pool, normed(keys), ws.k, k_norm_.data, k_norm_.dtype, eps, offset);
  }
  Rotate(ws);
  if (layer.shared_kv >= 0) ShareKeys(ws);
  KvAppend(ws.pool, kv, ws.attention_rows(), ws.k, ws.v, kv_cols);
  return absl::OkStatus();
}

// They travel as the pages store them, so the copy of a layer that takes them has the same bits.
void AttentionBlock::ShareKeys(Workspace& ws) const {
  const LayerConfig& layer = config_.layer(layer_);
  const int64_t count = ws.rows * config_.kv_cols(layer_);
  if (layer.takes_kv) {
    Widen(ws, ws.shared_keys(layer.shared_kv), count, ws.k);
    Widen(ws, ws.shared_values(layer.shared_kv), count, ws.v);
  } else {
    Narrow(ws, ws.k, count, ws.shared_keys(layer.shared_kv));
    Narrow(ws, ws.v, count, ws.shared_values(layer.shared_kv));
  }
}

absl::Status AttentionBlock::Attend(Workspace& ws, const KvView& kv) const {
  AttentionPieces pieces;
  if (ws.pieces_attended > 0 || ws.has_records) {
    pieces.begin = ws.pieces_attended;
    if (ws.has_records) pieces.covered = ws.covered;
  } else if (ws.pieces_attended < 0) {
    LIME_RETURN_IF_ERROR(Append(ws, kv));
  }
  cpu::Attend(ws.pool, ws.attention, kv, ws.attention_rows(), ws.q, ShapeOf(ws), ws.attended, pieces);
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
  SetCarried(ws.attention, ws.attention_rows(), ShapeOf(ws), head_dim(), ws.covered, records);
  ws.has_records = true;
  return absl::OkStatus();
}

absl::Status AttentionBlock::AttendToPieces(Workspace& ws, const KvView& kv, const AttentionPieces& pieces) const {
  LIME_RETURN_IF_ERROR(Queries(ws, kv));
  if (pieces.begin != ws.pieces_attended || ws.has_records)
    return absl::InternalError(
        absl::StrCat("attention is to continue at piece ", pieces.begin, " of KV, but it has covered ", ws.pieces_attended, " pieces"));
  cpu::Attend(ws.pool, ws.attention, kv, ws.attention_rows(), ws.q, ShapeOf(ws), ws.attended, pieces);
  ws.pieces_attended = pieces.end;
  return absl::OkStatus();
}

absl::Status AttentionBlock::ForwardRows(const RowsInMemory& rows, const StepMemory& memory) {
  Workspace& ws = memory.ws;
  const TensorRole role = rows.rows.role;
  LinearLayer& layer = linear(role);
  layer.PointAt(rows);
  switch (role) {
    case TensorRole::kQ:
      if (layer.row_begin == 0) Normalise(ws);
      LinearOut(ws, ws.normed, ws.rows, {{&layer, QOut(ws)}});
      break;
    case TensorRole::kQkvByHead:
      if (layer.row_begin == 0) Normalise(ws);
      LinearOut(ws, ws.normed, ws.rows, {{&layer, ws.by_head}});
      if (layer.is_complete()) SplitHeads(ws);
      break;
    case TensorRole::kK:
      LinearOut(ws, ws.normed, ws.rows, {{&layer, ws.k}});
      break;
    case TensorRole::kV:
      LinearOut(ws, ws.normed, ws.rows, {{&layer, ws.v}});
      break;
    default:
      if (layer.row_begin == 0) LIME_RETURN_IF_ERROR(Attend(ws, memory.kv.layer(layer_)));
      AddToX(ws, ws.attended, layer, after_norm_);
  }
  return absl::OkStatus();
}

// ---- MLP

void MlpBlock::Bind(const BlockBinder& binder) {
  norm_ = binder.ReadNorm(config_);
  gate_ = binder.Linear(TensorRole::kGate, config_.hidden_size);
  up_ = binder.Linear(TensorRole::kUp, config_.hidden_size);
  down_ = binder.Linear(TensorRole::kDown, config_.layer(layer_).intermediate_size);
  after_norm_ = binder.ReadNorm(config_, TensorRole::kAfterNorm);
  layer_scale_ = binder.Number(TensorRole::kLayerScale);
  layer_gate_ = binder.Linear(TensorRole::kLayerGate, config_.hidden_size);
  layer_up_ = binder.Linear(TensorRole::kLayerUp, config_.layer_inputs);
  layer_after_norm_ = binder.ReadNorm(config_, TensorRole::kLayerAfterNorm);
  bound_decider_ = gated() ? gate_ : up_, bound_up_ = up_, bound_down_ = down_;
}

// Where the halves are parallel, the attention half has computed it.
const std::byte* MlpBlock::Input(Workspace& ws) const {
  if (config_.parallel_halves) return ws.mlp_input();
  norm_.Forward(ws, ws.x, ws.rows, ws.normed);
  return ws.normed;
}

const std::byte* MlpBlock::InputOfRow(Workspace& ws, int64_t row) const {
  const int64_t at = row * ws.hidden * ElementBytes(ws.dtype);
  if (config_.parallel_halves) return ws.mlp_input() + at;
  norm_.Forward(ws, ws.x + at, 1, ws.normed + at);
  return ws.normed + at;
}

absl::Status MlpBlock::Forward(const StepMemory& memory) {
  Workspace& ws = memory.ws;
  ws.neuron_progress = {};
  ws.predicted_layer = -1;
  const std::byte* const input = Input(ws);  // [tokens, hidden]
  if (predictor_) Predict(ws, input);
  if (gated()) {
    LinearOut(ws, input, ws.rows, {{&gate_, ws.gate}, {&up_, ws.up}});  // [tokens, intermediate] each
  } else {
    LinearOut(ws, input, ws.rows, {{&up_, ws.up}});
  }
  Activate(ws);
  AddToX(ws, ws.mixed, down_, after_norm_, mlp_scale());
  if (layer_gate_.outputs == 0) return absl::OkStatus();
  LinearOut(ws, ws.x, ws.rows, {{&layer_gate_, ws.gate}});  // [tokens, layer_inputs]
  ActivateInputs(ws);
  AddToX(ws, ws.mixed, layer_up_, layer_after_norm_, layer_scale_);
  return absl::OkStatus();
}

void MlpBlock::Activate(Workspace& ws) const {
  const int64_t n = up_.outputs;
  GatedActivation(ws.pool, config_.activation, gated() ? ws.gate : ws.up, gated() ? ws.up : nullptr, ws.rows, n, n, ws.mixed, ws.dtype, n,
                  static_cast<float>(config_.activation_limit));
  if (predictor_) KeepPredicted(ws);
}

void MlpBlock::ActivateInputs(Workspace& ws) const {
  const int64_t n = config_.layer_inputs;
  Widen(ws, ws.layer_inputs(layer_), ws.rows * n, ws.up);
  GatedActivation(ws.pool, config_.activation, ws.gate, ws.up, ws.rows, n, n, ws.mixed, ws.dtype, n);
}

absl::Status MlpBlock::ForwardRows(const RowsInMemory& rows, const StepMemory& memory) {
  Workspace& ws = memory.ws;
  const TensorRole role = rows.rows.role;
  LinearLayer& layer = linear(role);
  layer.PointAt(rows);
  if (role == TensorRole::kLayerGate) {
    LinearOut(ws, ws.x, ws.rows, {{&layer, ws.gate}});
    return absl::OkStatus();
  }
  if (role != TensorRole::kGate && role != TensorRole::kUp) {
    const bool of_inputs = role == TensorRole::kLayerUp;
    if (role == TensorRole::kDown) ws.neuron_progress = {};  // computed from whole matrices
    if (layer.row_begin == 0) of_inputs ? ActivateInputs(ws) : Activate(ws);
    AddToX(ws, ws.mixed, layer, of_inputs ? layer_after_norm_ : after_norm_, of_inputs ? layer_scale_ : mlp_scale());
    if (role == TensorRole::kDown && layer.is_complete()) ws.predicted_layer = -1;
    return absl::OkStatus();
  }
  const bool is_first = role == TensorRole::kGate || !gated();
  const std::byte* const input = is_first && layer.row_begin == 0 ? Input(ws) : config_.parallel_halves ? ws.mlp_input() : ws.normed;
  if (predictor_ && is_first && layer.row_begin == 0) Predict(ws, input);
  LinearOut(ws, input, ws.rows, {{&layer, role == TensorRole::kGate ? ws.gate : ws.up}});
  if (is_first) ws.neuron_progress = {.layer = layer_, .has_decider = layer.is_complete()};
  return absl::OkStatus();
}

// ---- Head

void HeadBlock::Bind(const BlockBinder& binder) {
  norm_ = binder.ReadNorm(config_);
  output_ = binder.Linear(TensorRole::kOutput, config_.hidden_size);
}

absl::Status HeadBlock::Forward(const StepMemory& memory) {
  Workspace& ws = memory.ws;
  if (ws.logit_rows == 0) return absl::OkStatus();
  Select(ws);
  Project(ws);  // [logit rows, vocab]
  return absl::OkStatus();
}

void HeadBlock::Select(Workspace& ws) const {
  const int64_t row_bytes = ws.hidden * ElementBytes(ws.dtype);
  for (int64_t i = 0; i < ws.logit_rows; ++i)  // [logit rows, hidden]
    std::memcpy(ws.head_x + i * row_bytes, ws.x + ws.head_rows[i] * row_bytes, static_cast<size_t>(row_bytes));
  if (config_.final_norm) norm_.Forward(ws, ws.head_x, ws.logit_rows, ws.head_x);
  ws.head_selected = true;
}

void HeadBlock::Project(Workspace& ws) const {
  LinearOut(ws, ws.head_x, ws.logit_rows, {{&output_, ws.logits}});
  float* const logits = ws.logits + output_.row_begin;
  if (config_.logits_divisor != 1)
    DivideRows(ws.pool, logits, ws.logit_rows, output_.weight.rows, ws.vocab, static_cast<float>(config_.logits_divisor));
  if (config_.logits_cap != 0)
    CapRows(ws.pool, logits, ws.logit_rows, output_.weight.rows, ws.vocab, static_cast<float>(config_.logits_cap));
}

absl::Status HeadBlock::ForwardRows(const RowsInMemory& rows, const StepMemory& memory) {
  Workspace& ws = memory.ws;
  if (ws.logit_rows == 0) return absl::OkStatus();
  output_.PointAt(rows);
  if (!ws.head_selected) Select(ws);
  Project(ws);
  return absl::OkStatus();
}

}  // namespace lime::cpu
