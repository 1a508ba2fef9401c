#include "kernels/cpu_backend/latent_attention.h"

#include <cstring>

#include "kernels/cpu/row_ops.h"

namespace lime::cpu {

void LatentAttentionBlock::Bind(const BlockBinder& binder) {
  norm_ = binder.ReadNorm(config_);
  q_down_ = binder.Linear(TensorRole::kQDown, config_.hidden_size);
  q_up_ = binder.Linear(TensorRole::kQUp, sizes().query_rank);
  kv_down_ = binder.Linear(TensorRole::kKvDown, config_.hidden_size);
  q_norm_ = binder.Small(TensorRole::kQDownNorm);
  kv_norm_ = binder.Small(TensorRole::kKvDownNorm);
  kv_up_ = binder.Small(TensorRole::kKvUp);
  o_ = binder.Linear(TensorRole::kO, config_.attended_cols(layer_));
  after_norm_ = binder.ReadNorm(config_, TensorRole::kAfterNorm);
}

absl::Status LatentAttentionBlock::Forward(const StepMemory& memory) {
  Workspace& ws = memory.ws;
  Normalise(ws);                                                                  // [tokens, hidden]
  LinearOut(ws, ws.normed, ws.rows, {{&q_down_, ws.q_down}, {&kv_down_, ws.v}});  // [tokens, query_rank], [tokens, rank + rotated]
  NormaliseQueries(ws);
  LinearOut(ws, ws.q_down_x, ws.rows, {{&q_up_, ws.q_heads}});         // [tokens, heads * (plain + rotated)]
  LIME_RETURN_IF_ERROR(AttendToLatents(ws, memory.kv.layer(layer_)));  // [tokens, heads * value_dim]
  AddToX(ws, ws.values, o_, after_norm_);
  return absl::OkStatus();
}

absl::Status LatentAttentionBlock::ForwardRows(const RowsInMemory& rows, const StepMemory& memory) {
  Workspace& ws = memory.ws;
  const TensorRole role = rows.rows.role;
  LinearLayer& layer = linear(role);
  layer.PointAt(rows);
  const bool is_first = layer.row_begin == 0;
  switch (role) {
    case TensorRole::kQDown:
      if (is_first) Normalise(ws);
      LinearOut(ws, ws.normed, ws.rows, {{&layer, ws.q_down}});
      break;
    case TensorRole::kQUp:
      if (is_first) NormaliseQueries(ws);
      LinearOut(ws, ws.q_down_x, ws.rows, {{&layer, ws.q_heads}});
      break;
    case TensorRole::kKvDown:
      LinearOut(ws, ws.normed, ws.rows, {{&layer, ws.v}});
      break;
    default:
      if (is_first) LIME_RETURN_IF_ERROR(AttendToLatents(ws, memory.kv.layer(layer_)));
      AddToX(ws, ws.values, layer, after_norm_);
  }
  return absl::OkStatus();
}

void LatentAttentionBlock::NormaliseQueries(Workspace& ws) const {
  const int64_t n = sizes().query_rank;
  const NormShape shape{.rows = ws.rows, .width = n, .x_stride = n, .out_stride = n, .dtype = ws.dtype, .weight_dtype = q_norm_.dtype};
  std::memset(ws.q_down_x, 0, static_cast<size_t>(ws.rows * n * ElementBytes(ws.dtype)));
  RmsNormAddTo(ws.pool, shape, ws.q_down, q_norm_.data, static_cast<float>(sizes().norm_eps), 1.0f, ws.q_down_x);
}

LatentCall LatentAttentionBlock::CallOf(const Workspace& ws) const {
  return {.sizes = sizes(), .heads = config_.num_heads, .rows = ws.rows, .up = kv_up_.data, .dtype = kv_up_.dtype};
}

absl::Status LatentAttentionBlock::Append(Workspace& ws, const KvView& kv) const {
  LIME_RETURN_IF_ERROR(CheckPages(ws, kv));
  const int64_t kv_cols = sizes().kv_cols();
  const HeadShape latents{.tokens = ws.rows, .heads = 1, .head_dim = sizes().rank, .stride = kv_cols};
  HeadRmsNorm(ws.pool, latents, ws.v, kv_norm_.data, kv_norm_.dtype, static_cast<float>(sizes().norm_eps));
  OrderLatents(ws.pool, sizes(), ws.rows, ws.v, ws.k);
  AbsorbKeys(ws.pool, CallOf(ws), ws.q_heads, ws.q);
  Rotate(ws);
  KvAppend(ws.pool, kv, ws.attention_rows(), ws.k, nullptr, kv_cols);
  return absl::OkStatus();
}

absl::Status LatentAttentionBlock::AttendToLatents(Workspace& ws, const KvView& kv) const {
  LIME_RETURN_IF_ERROR(Attend(ws, kv));
  ExpandValues(ws.pool, CallOf(ws), ws.attended, ws.dtype, ws.values);
  return absl::OkStatus();
}

}  // namespace lime::cpu
