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

void AttentionBlock::Forward(Workspace& ws, const ops::KvLayer& kv, const ops::RopeTables* rope) const {
  norm.Forward(ws.x, ws.normed);                                       // [tokens, hidden]
  ops::LinearManyOut(ws.normed, {&q, &k, &v}, {&ws.q, &ws.k, &ws.v});  // [tokens, heads * head_dim], [tokens, kv_heads * head_dim]
  if (q_norm.defined()) {
    ops::HeadRmsNormInPlace(ws.q, q_norm, norm_eps);  // over head_dim
    ops::HeadRmsNormInPlace(ws.k, k_norm, norm_eps);
  }
  if (rope != nullptr) {
    ops::RopeInPlace(ws.q, ws.positions, *rope);
    ops::RopeInPlace(ws.k, ws.positions, *rope);
  }
  ops::KvAppend(ws.k, ws.v, ws.slots, ws.positions, kv);
  ops::AttendOut(ws.q, ws.slots, ws.positions, kv, window, ws.attended);  // [tokens, heads * head_dim]
  ops::LinearAddTo(ws.attended, o, ws.x);                                 // residual add in the epilogue, rounded once
}

void MlpBlock::Forward(Workspace& ws) const {
  norm.Forward(ws.x, ws.normed);  // [tokens, hidden]
  if (gate.weight.defined()) {
    ops::LinearManyOut(ws.normed, {&gate, &up}, {&ws.gate, &ws.up});  // [tokens, intermediate] each
    ops::GatedActivationOut(ws.gate, ws.up, activation, ws.mixed);
  } else {
    ops::LinearOut(ws.normed, up, ws.up);
    ops::ActivationOut(ws.up, activation, ws.mixed);
  }
  ops::LinearAddTo(ws.mixed, down, ws.x);
}

void HeadBlock::Forward(Workspace& ws) const {
  ops::GatherRowsOut(ws.x, ws.head_rows, ws.head_x);  // [logit rows, hidden]
  if (has_norm) norm.Forward(ws.head_x, ws.head_x);
  ops::LinearOut(ws.head_x, output, ws.logits);  // [logit rows, vocab]
}

}  // namespace lime
