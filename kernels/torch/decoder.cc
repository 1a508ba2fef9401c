#include "kernels/torch/decoder.h"

namespace lime::torch_ops {
namespace {

// x + y, rounded once.
at::Tensor Add(const at::Tensor& x, const at::Tensor& y) {
  return (x.to(at::kFloat) + y).to(x.scalar_type());
}

}  // namespace

at::Tensor EmbeddingBlock::Forward(const BatchRows& batch, int64_t hidden, at::ScalarType working) const {
  return Embed(batch.tokens, table, hidden, batch.positions, position_table, position_offset).to(working);  // [tokens, hidden]
}

at::Tensor AttentionBlock::Forward(const at::Tensor& x, const BatchRows& batch, const KvLayer& kv, const RopeTensors& rope) const {
  const at::Tensor normed = norm.Forward(x);                         // [tokens, hidden]
  at::Tensor queries = Linear(normed, q), keys = Linear(normed, k);  // [tokens, heads * head_dim], [tokens, kv_heads * head_dim]
  if (q_norm.defined()) {
    queries = HeadRmsNorm(queries, q_norm, norm.eps);
    keys = HeadRmsNorm(keys, k_norm, norm.eps);
  }
  if (rope.cos.defined()) {
    queries = Rope(queries, batch.positions, rope.cos, rope.sin);
    keys = Rope(keys, batch.positions, rope.cos, rope.sin);
  }
  KvAppend(keys, Linear(normed, v), batch.slots, batch.positions, kv);
  return Add(x, Linear(Attend(queries, batch.slots, batch.positions, kv, window), o));  // [tokens, hidden]
}

at::Tensor MlpBlock::Forward(const at::Tensor& x) const {
  const at::Tensor normed = norm.Forward(x), wide = Linear(normed, up);  // [tokens, hidden], [tokens, intermediate]
  const at::Tensor mixed = gate ? GatedActivation(Linear(normed, *gate), wide, activation) : PlainActivation(wide, activation);
  return Add(x, Linear(mixed.to(x.scalar_type()), down));
}

}  // namespace lime::torch_ops
