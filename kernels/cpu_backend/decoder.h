// The blocks of a decoder: their parameters, and their forward passes from top to bottom.
//
// They know nothing of segments, peers or files. The caller keeps the weights' memory alive; the
// Workspace owns the activations; Forward allocates nothing. The residual stream and the inputs of
// linear layers are in the working dtype; everything between is fp32 (docs/reference/numerics.md).
//
// A call that returns a Status fails if it is out of order, or if a row's KV page is not here. It
// has then changed nothing.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/attention.h"
#include "kernels/cpu/linear/linear.h"
#include "kernels/cpu_backend/workspace.h"
#include "planner/base/status.h"
#include "planner/plan/model/block_parts.h"
#include "planner/plan/model/model_config.h"

namespace lime::cpu {

// A linear layer's parameters. If the layer is streamed, `weight` has only the rows that have
// arrived, from `row_begin` on. They compute their columns of the output and leave the others
// unchanged.
struct LinearLayer {
  Matrix weight;
  const std::byte* bias = nullptr;  // [outputs] working dtype, or null
  int64_t outputs = 0;              // rows of the whole layer; 0: the block has no such layer
  int64_t row_begin = 0;

  // Uses the rows that have arrived as the weight from now on.
  void PointAt(const RowsInMemory& rows);
};

// RMSNorm, or LayerNorm for families that have it.
struct Norm {
  const std::byte* weight = nullptr;  // [hidden]; null in a LayerNorm without affine parameters
  const std::byte* bias = nullptr;    // [hidden]; LayerNorm only
  DType dtype = DType::kF32;          // of both
  double eps = 0;
  bool centred = false;  // LayerNorm

  // x, out: [rows, hidden] working dtype; out may be x.
  void Forward(Workspace& ws, const std::byte* x, int64_t rows, std::byte* out) const;
};

// RMSNorm over every head of q or k.
struct HeadNorm {
  const std::byte* weight = nullptr;  // [head_dim]; null: there is none
  DType dtype = DType::kF32;
};

struct EmbeddingBlock {
  LinearLayer table;                          // [vocab, hidden]
  const std::byte* position_table = nullptr;  // [positions + offset, hidden] working dtype, or null
  int64_t position_offset = 0;

  void Forward(Workspace& ws) const;
};

struct AttentionBlock {
  Norm norm;
  LinearLayer q, k, v, o;
  HeadNorm q_norm, k_norm;
  double norm_eps = 0;  // for q_norm and k_norm
  int64_t heads = 0, kv_heads = 0, head_dim = 0;
  int64_t window = 0;  // positions a token sees, itself included; 0: all

  // Updates ws.x in place; appends this step's K and V to `kv`.
  absl::Status Forward(Workspace& ws, const KvView& kv) const;

  // The same for some rows of q, k, v or o, in this order. linear(role) holds the rows that have
  // arrived.
  absl::Status ForwardRows(TensorRole role, Workspace& ws, const KvView& kv) const;
  // Call between the rows of v and of o: attends to some pieces of KV, from 0 on, before the rest.
  absl::Status AttendToPieces(Workspace& ws, const KvView& kv, const AttentionPieces& pieces) const;
  // Call between the rows of v and of o: makes ws.q the final queries and appends K and V to `kv`.
  absl::Status Queries(Workspace& ws, const KvView& kv) const;
  // Call after Queries, instead of AttendToPieces: sets `records` of the pieces before ws.taken.
  absl::Status ContinueFromRecords(Workspace& ws, const float* records) const;
  LinearLayer& linear(TensorRole role) { return role == TensorRole::kQ ? q : role == TensorRole::kK ? k : role == TensorRole::kV ? v : o; }

 private:
  // Appends ws.k and ws.v to `kv`; normalises and rotates ws.q and ws.k.
  absl::Status Append(Workspace& ws, const KvView& kv) const;
  absl::Status Attend(Workspace& ws, const KvView& kv) const;  // ws.q, k, v -> ws.attended
};

struct MlpBlock {
  Norm norm;
  LinearLayer gate, up, down;  // no gate in a two-matrix MLP
  Activation activation = Activation::kSilu;

  // Updates ws.x in place.
  void Forward(Workspace& ws) const;

  // The same for some rows of gate, up or down, in this order.
  void ForwardRows(TensorRole role, Workspace& ws) const;
  LinearLayer& linear(TensorRole role) { return role == TensorRole::kGate ? gate : role == TensorRole::kUp ? up : down; }

 private:
  bool gated() const { return gate.outputs > 0; }
  void Activate(Workspace& ws) const;  // ws.gate, up -> ws.mixed
};

struct HeadBlock {
  Norm norm;
  bool has_norm = true;
  LinearLayer output;  // [vocab, hidden]

  // Fills ws.logits for the rows in ws.head_rows.
  void Forward(Workspace& ws) const;

  // The same for some rows of the output, in any order.
  void ForwardRows(Workspace& ws) const;

 private:
  void Select(Workspace& ws) const;  // ws.x -> ws.head_x
};

// The shape of attention over rows of heads * head_dim floats.
AttentionShape AttentionShapeOf(int64_t heads, int64_t head_dim, int64_t window);

}  // namespace lime::cpu
