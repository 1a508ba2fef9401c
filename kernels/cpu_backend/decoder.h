// The blocks of a decoder: what they hold and their forward pass, top to bottom.
//
// They know nothing of segments, peers or files. Weights are memory that someone else keeps alive; activations are the Workspace's; nothing
// is allocated in Forward. Rounding points (design.md section 5): the residual stream and the operands of linear layers are in the working
// dtype; everything between is fp32.
//
// Calls that return a Status refuse what comes out of order, or a row whose KV page is not here; they have then changed nothing.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/attention.h"
#include "kernels/cpu/linear.h"
#include "kernels/cpu_backend/workspace.h"
#include "planner/base/status.h"
#include "planner/plan/block_pieces.h"
#include "planner/plan/model_config.h"

namespace lime::cpu {

// A linear layer's parameters. Of a layer that streams, `weight` has only the rows from `row_begin` on that have arrived; they fill their
// columns of the output and leave the others alone.
struct LinearLayer {
  Matrix weight;
  const std::byte* bias = nullptr;  // [outputs] working dtype, or null
  int64_t outputs = 0;              // rows of the whole layer; 0: the block has no such layer
  int64_t row_begin = 0;

  // Rows that have arrived: they are the weight from now on.
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
  double norm_eps = 0;  // of q_norm and k_norm
  int64_t heads = 0, kv_heads = 0, head_dim = 0;
  int64_t window = 0;  // positions a token sees, itself included; 0: all

  // Updates ws.x in place; appends this step's K and V to `kv`.
  absl::Status Forward(Workspace& ws, const KvView& kv) const;

  // The same in rows of q, k, v and o, in this order: `linear(role)` holds those that have arrived.
  absl::Status ForwardRows(TensorRole role, Workspace& ws, const KvView& kv) const;
  // Between the rows of v and those of o: attends to some pieces of KV, from 0 on, ahead of the others.
  absl::Status AttendPieces(Workspace& ws, const KvView& kv, const AttentionPieces& pieces) const;
  // Between them too: ws.q as it is attended with. K and V are in `kv` then.
  absl::Status Queries(Workspace& ws, const KvView& kv) const;
  // After Queries, in place of AttendPieces: `records` of the pieces ahead of ws.taken.
  absl::Status TakeRecords(Workspace& ws, const float* records) const;
  LinearLayer& linear(TensorRole role) { return role == TensorRole::kQ ? q : role == TensorRole::kK ? k : role == TensorRole::kV ? v : o; }

 private:
  absl::Status Append(Workspace& ws, const KvView& kv) const;  // ws.k, v to `kv`; ws.q and k as they are used
  absl::Status Attend(Workspace& ws, const KvView& kv) const;  // ws.q, k, v to ws.attended
};

struct MlpBlock {
  Norm norm;
  LinearLayer gate, up, down;  // no gate in a two-matrix MLP
  Activation activation = Activation::kSilu;

  // Updates ws.x in place.
  void Forward(Workspace& ws) const;

  // The same in rows of gate, up and down, in this order.
  void ForwardRows(TensorRole role, Workspace& ws) const;
  LinearLayer& linear(TensorRole role) { return role == TensorRole::kGate ? gate : role == TensorRole::kUp ? up : down; }

 private:
  bool gated() const { return gate.outputs > 0; }
  void Activate(Workspace& ws) const;  // ws.gate, up to ws.mixed
};

struct HeadBlock {
  Norm norm;
  bool has_norm = true;
  LinearLayer output;  // [vocab, hidden]

  // Fills ws.logits for the rows in ws.head_rows.
  void Forward(Workspace& ws) const;

  // The same in rows of the output, from any on.
  void ForwardRows(Workspace& ws) const;

 private:
  void Select(Workspace& ws) const;  // ws.x to ws.head_x
};

// How rows of heads * head_dim floats are attended with.
AttentionShape AttentionShapeOf(int64_t heads, int64_t head_dim, int64_t window);

}  // namespace lime::cpu
