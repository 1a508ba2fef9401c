// Activations of one micro-batch, allocated and pre-faulted once for the largest one.
//
// Thread: the compute thread.   Invariant: SetRows changes sizes in place and never allocates, so pointers stay.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>

#include "kernels/backend.h"
#include "planner/plan/model_spec.h"

namespace lime {

struct Workspace {
  Workspace(const ModelSpec& spec, const BackendOptions& options) : Workspace(spec, options, at::kCPU) {}
  // What such a workspace holds, without making it.
  static Bytes BytesFor(const ModelSpec& spec, const BackendOptions& options) { return Workspace(spec, options, at::kMeta).bytes(); }

  // For the next batch: every tensor below then has `rows` rows, those of the head `logit_rows`.
  void SetRows(int64_t rows, int64_t logit_rows);
  Bytes bytes() const { return bytes_; }

  at::Tensor tokens;     // [rows] int32
  at::Tensor slots;      // [rows] int32, sequence slot of each row
  at::Tensor positions;  // [rows] int32
  at::Tensor x;          // [rows, hidden] working dtype: the residual stream
  at::Tensor normed;     // [rows, hidden] working dtype
  at::Tensor q;          // [rows, heads * head_dim] fp32
  at::Tensor k, v;       // [rows, kv_heads * head_dim] fp32
  at::Tensor attended;   // [rows, heads * head_dim] working dtype
  at::Tensor gate, up;   // [rows, intermediate] fp32
  at::Tensor mixed;      // [rows, intermediate] working dtype
  at::Tensor head_rows;  // [logit_rows] int32, rows that asked for logits
  at::Tensor head_x;     // [logit_rows, hidden] working dtype
  at::Tensor logits;     // [logit_rows, vocab] fp32

  // Whether head_x is of this batch yet.
  bool head_selected = false;
  // Of the layer at work, the pieces of KV that were attended to; -1: its K and V are not appended yet.
  int64_t pieces_attended = -1;
  // Whether the first pieces of that layer were attended to elsewhere, and of each sequence slot how many.
  bool records_taken = false;
  at::Tensor taken;  // [sequence slots] int32; undefined without BackendOptions::attends_pieces

 private:
  // On the meta device tensors have sizes and no memory.
  Workspace(const ModelSpec& spec, const BackendOptions& options, at::DeviceType device);
  at::Tensor Make(int64_t rows, int64_t cols, at::ScalarType dtype);

  at::DeviceType device_;
  Bytes bytes_ = 0;
};

// Uninitialised sizes, written once so that no page is faulted in later; large tensors lie on 2 MiB pages where the system has them.
at::Tensor EmptyPrefaulted(at::IntArrayRef sizes, at::ScalarType dtype);

// The dtype as torch names it. REQUIRES: a working dtype.
at::ScalarType ToTorch(DType dtype);

}  // namespace lime
