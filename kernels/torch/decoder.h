// The blocks of a decoder: what they hold and their forward pass, top to bottom.
//
// They know nothing of segments, peers or files. Weights are views that someone else keeps alive; activations are the Workspace's; nothing
// is allocated in Forward. Rounding points (design.md section 5): the residual stream and the operands of linear layers are in the working
// dtype; everything between is fp32.
#pragma once

#include <ATen/ATen.h>

#include "kernels/torch/ops.h"
#include "kernels/torch/workspace.h"
#include "planner/plan/model_config.h"
#include "planner/plan/model_spec.h"

namespace lime {

// RMSNorm, or LayerNorm for families that have it.
struct Norm {
  at::Tensor weight;  // [width]; undefined in a LayerNorm without affine parameters
  at::Tensor bias;    // [width]; LayerNorm only
  double eps = 0;
  bool centred = false;  // LayerNorm

  void Forward(const at::Tensor& x, at::Tensor& out) const;
};

struct EmbeddingBlock {
  ops::LinearWeight table;    // [vocab, hidden]
  at::Tensor position_table;  // [positions + offset, hidden], or undefined
  int64_t position_offset = 0;

  void Forward(Workspace& ws) const;
};

struct AttentionBlock {
  Norm norm;
  ops::LinearWeight q, k, v, o;
  at::Tensor q_norm, k_norm;  // [head_dim], or undefined
  double norm_eps = 0;        // of q_norm and k_norm
  int64_t heads = 0, kv_heads = 0, head_dim = 0;
  int64_t window = 0;  // positions a token sees, itself included; 0: all

  // Updates ws.x in place; appends this step's K and V to `kv`. `rope` is null where positions are learned.
  void Forward(Workspace& ws, const ops::KvLayer& kv, const ops::RopeTables* rope) const;

  // The same in rows of q, k, v and o, in this order: `linear(role)` holds those that have arrived.
  void ForwardRows(TensorRole role, Workspace& ws, const ops::KvLayer& kv, const ops::RopeTables* rope) const;
  // Between the rows of v and those of o: attends to some pieces of KV, from 0 on, ahead of the others.
  void AttendPieces(Workspace& ws, const ops::KvLayer& kv, const ops::RopeTables* rope, const ops::KvPieces& pieces) const;
  // Between them too: ws.q as it is attended with. K and V are in `kv` then.
  void Queries(Workspace& ws, const ops::KvLayer& kv, const ops::RopeTables* rope) const;
  // After Queries, in place of AttendPieces: `records` of the pieces ahead of ws.taken.
  void TakeRecords(Workspace& ws, const at::Tensor& records) const;
  ops::LinearWeight& linear(TensorRole role) {
    return role == TensorRole::kQ ? q : role == TensorRole::kK ? k : role == TensorRole::kV ? v : o;
  }

 private:
  void Append(Workspace& ws, const ops::KvLayer& kv, const ops::RopeTables* rope) const;  // ws.k, v to `kv`; ws.q and k as they are used
  void Attend(Workspace& ws, const ops::KvLayer& kv, const ops::RopeTables* rope) const;  // ws.q, k, v to ws.attended
};

struct MlpBlock {
  Norm norm;
  ops::LinearWeight gate, up, down;  // gate undefined in a two-matrix MLP
  Activation activation = Activation::kSilu;

  // Updates ws.x in place.
  void Forward(Workspace& ws) const;

  // The same in rows of gate, up and down, in this order.
  void ForwardRows(TensorRole role, Workspace& ws) const;
  ops::LinearWeight& linear(TensorRole role) { return role == TensorRole::kGate ? gate : role == TensorRole::kUp ? up : down; }

 private:
  bool gated() const { return gate.weight.defined(); }
  void Activate(Workspace& ws) const;  // ws.gate, up to ws.mixed
};

struct HeadBlock {
  Norm norm;
  bool has_norm = true;
  ops::LinearWeight output;  // [vocab, hidden]

  // Fills ws.logits for the rows in ws.head_rows.
  void Forward(Workspace& ws) const;

  // The same in rows of the output, from any on.
  void ForwardRows(Workspace& ws) const;

 private:
  void Select(Workspace& ws) const;  // ws.x to ws.head_x
};

}  // namespace lime
