// What one step needs beside weights and KV, allocated and pre-faulted once for the largest micro-batch: its activations, the scratch
// memory of the operators, their threads, and the tables of the rotations.
//
// Thread: the compute thread.   Invariant: SetRows allocates nothing, and no pointer ever changes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "kernels/backend.h"
#include "kernels/cpu/attention.h"
#include "kernels/cpu/linear.h"
#include "kernels/cpu/rope.h"
#include "kernels/cpu/thread_pool.h"
#include "kernels/cpu_backend/buffer.h"
#include "planner/plan/model_spec.h"

namespace lime::cpu {

// The arrays of one micro-batch. `rows` and `logit_rows` are those of the batch; there is room for the largest.
struct BatchArrays {
  int32_t* tokens = nullptr;      // [rows]
  int32_t* slots = nullptr;       // [rows], sequence slot of each row
  int32_t* positions = nullptr;   // [rows]
  std::byte* x = nullptr;         // [rows, hidden] working dtype: the residual stream
  std::byte* normed = nullptr;    // [rows, hidden] working dtype
  float* q = nullptr;             // [rows, heads * head_dim]
  float* k = nullptr;             // [rows, kv_heads * head_dim]
  float* v = nullptr;             // [rows, kv_heads * head_dim]
  std::byte* attended = nullptr;  // [rows, heads * head_dim] working dtype
  float* gate = nullptr;          // [rows, intermediate]; null in a two-matrix MLP
  float* up = nullptr;            // [rows, intermediate]
  std::byte* mixed = nullptr;     // [rows, intermediate] working dtype
  int32_t* head_rows = nullptr;   // [logit_rows], the rows that asked for logits
  std::byte* head_x = nullptr;    // [logit_rows, hidden] working dtype
  float* logits = nullptr;        // [logit_rows, vocab]
  int32_t* taken = nullptr;       // [sequence slots], of `records_taken`; null without BackendOptions::attends_pieces
};

struct Workspace : BatchArrays {
  Workspace(const ModelSpec& spec, const BackendOptions& options, Numerics numerics);
  // bytes() of such a workspace, without making it.
  static Bytes BytesFor(const ModelSpec& spec, const BackendOptions& options);
  Bytes bytes() const;

  // For the next batch; its K and V are not appended yet.
  void SetRows(int64_t new_rows, int64_t new_logit_rows);
  AttentionRows attention_rows() const { return {.slots = slots, .positions = positions, .count = rows}; }

  const DType dtype;  // the working dtype
  const int64_t hidden, intermediate, vocab;
  int64_t rows = 0;
  int64_t logit_rows = 0;

  // Where a block stands that is computed in several calls.
  bool head_selected = false;    // head_x is of this batch
  int64_t pieces_attended = -1;  // pieces of KV that the layer at work has attended to; -1: its K and V are not appended yet
  bool records_taken = false;    // that layer's first pieces were attended to elsewhere: of each sequence slot, `taken`

  ThreadPool pool;
  LinearWorkspace linear;
  AttentionWorkspace attention;
  std::optional<AttentionWorkspace> for_others;  // apart, so that what `attention` carries from piece to piece stays as it is
  std::optional<RopeTable> rope;                 // nothing where positions are learned

 private:
  std::vector<Buffer> memory_;
  Bytes array_bytes_ = 0;
};

}  // namespace lime::cpu
