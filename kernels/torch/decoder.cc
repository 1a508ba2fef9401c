#include "kernels/torch/decoder.h"

namespace lime {

void Norm::Forward(const at::Tensor& x, at::Tensor& out) const {
  if (centred) {
    ops::LayerNormOut(x, weight, bias, eps, out);
  } else {
    ops::RmsNormOut(x, weight, eps, out);
  }
}

void EmbeddingBlock::Forward(Workspace& ws) const {
  ops::EmbedOut(ws.tokens, table, ws.positions, position_table, position_offset, ws.x);  // [tokens, hidden]
}

// ---- Attention

void AttentionBlock::Forward(Workspace& ws, const ops::KvLayer& kv, const ops::RopeTables* rope) const {
  norm.Forward(ws.x, ws.normed);                                       // [tokens, hidden]
  ops::LinearManyOut(ws.normed, {&q, &k, &v}, {&ws.q, &ws.k, &ws.v});  // [tokens, heads * head_dim], [tokens, kv_heads * head_dim]
  Attend(ws, kv, rope);                                                // [tokens, heads * head_dim]
  ops::LinearAddTo(ws.attended, o, ws.x);                              // residual add in the epilogue, rounded once
}

void AttentionBlock::Append(Workspace& ws, const ops::KvLayer& kv, const ops::RopeTables* rope) const {
  if (q_norm.defined()) {
    ops::HeadRmsNormInPlace(ws.q, q_norm, norm_eps);  // over head_dim
    ops::HeadRmsNormInPlace(ws.k, k_norm, norm_eps);
  }
  if (rope != nullptr) {
    ops::RopeInPlace(ws.q, ws.positions, *rope);
    ops::RopeInPlace(ws.k, ws.positions, *rope);
  }
  ops::KvAppend(ws.k, ws.v, ws.slots, ws.positions, kv);
}

void AttentionBlock::Attend(Workspace& ws, const ops::KvLayer& kv, const ops::RopeTables* rope) const {
  if (ws.pieces_attended > 0 || ws.records_taken) {
    const ops::KvPieces rest{
        .begin = ws.pieces_attended, .end = INT64_MAX, .places = {}, .taken = ws.records_taken ? ws.taken : at::Tensor()};
    ops::AttendPiecesOut(ws.q, ws.slots, ws.positions, kv, rest, window, ws.attended);
  } else {
    if (ws.pieces_attended < 0) Append(ws, kv, rope);
    ops::AttendOut(ws.q, ws.slots, ws.positions, kv, window, ws.attended);
  }
  ws.pieces_attended = -1;
  ws.records_taken = false;
}

void AttentionBlock::Queries(Workspace& ws, const ops::KvLayer& kv, const ops::RopeTables* rope) const {
  if (ws.pieces_attended < 0) Append(ws, kv, rope);
  ws.pieces_attended = std::max<int64_t>(0, ws.pieces_attended);
}

void AttentionBlock::TakeRecords(Workspace& ws, const at::Tensor& records) const {
  TORCH_CHECK(ws.pieces_attended == 0 && !ws.records_taken, "records after ", ws.pieces_attended, " pieces of KV");
  ops::TakeRecords(records, ws.slots, ws.positions, ws.taken, head_dim, window);
  ws.records_taken = true;
}

void AttentionBlock::AttendPieces(Workspace& ws, const ops::KvLayer& kv, const ops::RopeTables* rope, const ops::KvPieces& pieces) const {
  Queries(ws, kv, rope);
  TORCH_CHECK(pieces.begin == ws.pieces_attended && !ws.records_taken, "pieces of KV from ", pieces.begin, " on, and ", ws.pieces_attended,
              " were attended to");
  ops::AttendPiecesOut(ws.q, ws.slots, ws.positions, kv, pieces, window, ws.attended);
  ws.pieces_attended = pieces.end;
}

void AttentionBlock::ForwardRows(TensorRole role, Workspace& ws, const ops::KvLayer& kv, const ops::RopeTables* rope) const {
  switch (role) {
    case TensorRole::kQ:
      if (q.row_begin == 0) norm.Forward(ws.x, ws.normed);
      return ops::LinearOut(ws.normed, q, ws.q);
    case TensorRole::kK:
      return ops::LinearOut(ws.normed, k, ws.k);
    case TensorRole::kV:
      return ops::LinearOut(ws.normed, v, ws.v);
    default:
      if (o.row_begin == 0) Attend(ws, kv, rope);
      return ops::LinearAddTo(ws.attended, o, ws.x);
  }
}

// ---- MLP

void MlpBlock::Forward(Workspace& ws) const {
  norm.Forward(ws.x, ws.normed);  // [tokens, hidden]
  if (gated()) {
    ops::LinearManyOut(ws.normed, {&gate, &up}, {&ws.gate, &ws.up});  // [tokens, intermediate] each
  } else {
    ops::LinearOut(ws.normed, up, ws.up);
  }
  Activate(ws);
  ops::LinearAddTo(ws.mixed, down, ws.x);
}

void MlpBlock::Activate(Workspace& ws) const {
  if (gated()) {
    ops::GatedActivationOut(ws.gate, ws.up, activation, ws.mixed);
  } else {
    ops::ActivationOut(ws.up, activation, ws.mixed);
  }
}

void MlpBlock::ForwardRows(TensorRole role, Workspace& ws) const {
  switch (role) {
    case TensorRole::kGate:
      if (gate.row_begin == 0) norm.Forward(ws.x, ws.normed);
      return ops::LinearOut(ws.normed, gate, ws.gate);
    case TensorRole::kUp:
      if (!gated() && up.row_begin == 0) norm.Forward(ws.x, ws.normed);
      return ops::LinearOut(ws.normed, up, ws.up);
    default:
      if (down.row_begin == 0) Activate(ws);
      return ops::LinearAddTo(ws.mixed, down, ws.x);
  }
}

// ---- Head

void HeadBlock::Forward(Workspace& ws) const {
  Select(ws);
  ops::LinearOut(ws.head_x, output, ws.logits);  // [logit rows, vocab]
}

void HeadBlock::Select(Workspace& ws) const {
  ops::GatherRowsOut(ws.x, ws.head_rows, ws.head_x);  // [logit rows, hidden]
  if (has_norm) norm.Forward(ws.head_x, ws.head_x);
  ws.head_selected = true;
}

void HeadBlock::ForwardRows(Workspace& ws) const {
  if (!ws.head_selected) Select(ws);
  ops::LinearOut(ws.head_x, output, ws.logits);
}

}  // namespace lime
