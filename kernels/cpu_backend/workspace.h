// Everything that a step needs besides weights and KV: activations, the operators' scratch memory
// and threads, and the tables of rotations. Allocated and pre-faulted once for the largest
// micro-batch.
//
// Thread: the compute thread.   Invariant: SetRows allocates nothing, and no pointer ever changes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "kernels/backend.h"
#include "kernels/cpu/attention.h"
#include "kernels/cpu/base/thread_pool.h"
#include "kernels/cpu/delta_rule.h"
#include "kernels/cpu/linear/linear.h"
#include "kernels/cpu/rope.h"
#include "kernels/cpu_backend/buffer.h"
#include "planner/plan/model/model_spec.h"

namespace lime::cpu {

// The arrays of one micro-batch, sized for the largest one and for the largest layer. `rows` and
// `logit_rows` are the current batch's.
struct BatchArrays {
  int32_t* tokens = nullptr;     // [rows]
  int32_t* slots = nullptr;      // [rows], sequence slot of each row
  int32_t* positions = nullptr;  // [rows]
  std::byte* x = nullptr;        // [rows, hidden] working dtype: the residual stream
  std::byte* normed = nullptr;   // [rows, hidden] working dtype
  // Softmax attention.
  float* q = nullptr;             // [rows, heads * head_dim]
  float* k = nullptr;             // [rows, kv_heads * head_dim]
  float* v = nullptr;             // [rows, kv_heads * head_dim]
  float* q_and_gate = nullptr;    // [rows, heads, 2, head_dim]; null without ModelConfig::attention_gate
  std::byte* attended = nullptr;  // [rows, heads * head_dim or value_cols] working dtype
  // Linear attention; null if no layer has it.
  SequenceRows* runs = nullptr;  // [rows]
  float* qkv = nullptr;          // [rows, conv_cols]
  float* z = nullptr;            // [rows, value_cols]
  float* beta = nullptr;         // [rows, value_heads]
  float* decay = nullptr;        // [rows, value_heads]
  // Null without LinearAttentionConfig::by_key_head.
  float* qkvz = nullptr;        // [rows, conv_cols + value_cols]
  float* beta_decay = nullptr;  // [rows, 2 * value_heads]
  // MLP and head.
  float* gate = nullptr;         // [rows, intermediate]; null in a two-matrix MLP
  float* up = nullptr;           // [rows, intermediate]
  std::byte* mixed = nullptr;    // [rows, intermediate] working dtype
  int32_t* head_rows = nullptr;  // [logit_rows], rows that asked for logits
  std::byte* head_x = nullptr;   // [logit_rows, hidden] working dtype
  float* logits = nullptr;       // [logit_rows, vocab]
  // [sequence slots]; used if `has_records`. Null without BackendOptions::attends_pieces.
  int32_t* covered = nullptr;
};

struct Workspace : BatchArrays {
  Workspace(const ModelSpec& spec, const BackendOptions& options, Numerics numerics);
  // bytes() of such a workspace, without creating it.
  static Bytes BytesFor(const ModelSpec& spec, const BackendOptions& options);
  Bytes bytes() const;

  // Prepares for the next batch, whose K and V are not appended yet. Fills the arrays of its rows.
  // InvalidArgument if a layer has linear attention and the rows of a sequence are not consecutive.
  absl::Status SetBatch(const MicroBatch& batch, int64_t new_logit_rows);
  AttentionRows attention_rows() const { return {.slots = slots, .positions = positions, .count = rows}; }
  // The rows of each sequence. Empty if no layer has linear attention.
  std::span<SequenceRows> sequence_rows() const { return {runs, static_cast<size_t>(num_runs)}; }

  const DType dtype;  // the working dtype
  const int64_t hidden, vocab;
  const float residual_multiplier;
  int64_t rows = 0;
  int64_t num_runs = 0;
  int64_t logit_rows = 0;

  // Progress of a block that is computed in several calls.
  bool head_selected = false;  // head_x belongs to this batch
  // Pieces of KV that the current layer has attended to. -1: its K and V are not appended yet.
  int64_t pieces_attended = -1;
  // A host has attended to the current layer's first pieces: for each sequence slot, `covered` of
  // them.
  bool has_records = false;

  ThreadPool pool;
  LinearWorkspace linear;
  AttentionWorkspace attention;
  // Separate, so that it does not change the state that `attention` carries from call to call.
  std::optional<AttentionWorkspace> for_others;
  std::vector<RopeTable> ropes;  // of ModelConfig::ropes

 private:
  absl::Status FindRuns();

  std::vector<Buffer> memory_;
  Bytes array_bytes_ = 0;
};

}  // namespace lime::cpu
