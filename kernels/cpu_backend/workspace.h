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
#include "kernels/cpu/linear/linear_columns.h"
#include "kernels/cpu/rope.h"
#include "kernels/cpu/zero_prover.h"
#include "kernels/cpu_backend/buffer.h"
#include "planner/plan/model/model_spec.h"

namespace lime::cpu {

// The arrays of one micro-batch, sized for the largest one and for the largest layer. `rows` and
// `logit_rows` are the current batch's.
struct BatchArrays {
  int32_t* tokens = nullptr;     // [rows]
  int32_t* slots = nullptr;      // [rows], sequence slot of each row
  int32_t* positions = nullptr;  // [rows]
  // [rows]: rows of the tables of rotations. Null if these are the positions.
  int32_t* rope_rows = nullptr;
  std::byte* x = nullptr;       // [rows, hidden] working dtype: the residual stream; then mlp_input()
  std::byte* normed = nullptr;  // [rows, hidden] working dtype
  float* added = nullptr;       // [rows, hidden]: what a block adds, before the norm after it; null if there is none
  // Softmax attention.
  float* q = nullptr;             // [rows, heads * head_dim]
  float* k = nullptr;             // [rows, kv_heads * head_dim]
  float* v = nullptr;             // [rows, kv_heads * head_dim]
  float* by_head = nullptr;       // [rows, (heads + 2 * kv_heads) * head_dim]; null without ModelConfig::qkv_by_head
  float* q_and_gate = nullptr;    // [rows, heads, 2, head_dim]; null without ModelConfig::attention_gate
  std::byte* attended = nullptr;  // [rows, heads * head_dim or value_cols] working dtype
  // Attention over latents; null without it. v has the output of kKvDown.
  float* q_down = nullptr;        // [rows, query_rank]
  std::byte* q_down_x = nullptr;  // [rows, query_rank] working dtype, normalised
  float* q_heads = nullptr;       // [rows, heads, plain + rotated]
  std::byte* values = nullptr;    // [rows, heads, value_dim] working dtype
  // Linear attention; null if no layer has it.
  SequenceRows* runs = nullptr;  // [rows]
  float* qkv = nullptr;          // [rows, conv_cols]
  float* z = nullptr;            // [rows, value_cols]
  float* beta = nullptr;         // [rows, value_heads]
  float* decay = nullptr;        // [rows, value_heads]
  // Null without LinearAttentionConfig::by_key_head.
  float* qkvz = nullptr;        // [rows, conv_cols + value_cols]
  float* beta_decay = nullptr;  // [rows, 2 * value_heads]
  // MLP, shared expert and head.
  float* gate = nullptr;       // [rows, intermediate]; null in a two-matrix MLP
  float* up = nullptr;         // [rows, intermediate]
  std::byte* mixed = nullptr;  // [rows, intermediate] working dtype
  // Experts; null if no layer has them. Every row of the batch has per_token places: those of one
  // expert follow each other, its rows ascending; experts ascend.
  float* router = nullptr;          // [rows, experts]
  int32_t* chosen = nullptr;        // [rows, per_token], ids, ascending
  float* chosen_weights = nullptr;  // [rows, per_token]
  int32_t* places = nullptr;        // [rows, per_token]
  int32_t* first_place = nullptr;   // [experts + 1]
  int32_t* units = nullptr;         // [experts]: ids that some row chose, ascending
  int32_t* expert_rows = nullptr;   // [experts]: rows of its matrices that are computed
  std::byte* narrow = nullptr;      // [places, narrow_cols] working dtype: input, then that of kDown
  float* wide = nullptr;            // [places, wide_cols]: gate and up, then the result
  // The same for rows of other devices, [for_others_rows] of them. Null without
  // BackendOptions::computes_for_others.
  std::byte* narrow_for_others = nullptr;
  float* wide_for_others = nullptr;
  float* shared = nullptr;        // [rows, hidden]: of the shared expert; null without one
  std::byte* shared_x = nullptr;  // [rows, hidden] working dtype: its input; null without ExpertsConfig::norms_apart
  float* shared_scale = nullptr;  // [rows]; null without ExpertsConfig::shared_scale
  // Inputs of all layers; null without ModelConfig::layer_inputs. From the table, and from the products.
  float* layer_rows = nullptr;      // [rows, layer_input_cols]
  float* layer_products = nullptr;  // [rows, layer_input_cols]
  int32_t* head_rows = nullptr;     // [logit_rows], rows that asked for logits
  std::byte* head_x = nullptr;      // [logit_rows, hidden] working dtype
  float* logits = nullptr;          // [logit_rows, vocab]
  // Sparse MLPs; null without BackendOptions::sparse_rows. [intermediate] each.
  int32_t* neurons = nullptr;  // that are active, ascending
  Strip* up_rows = nullptr;    // of the neurons of one call
  Strip* down_columns = nullptr;
  // Predictors of neurons; null without BackendOptions::predictor_rank.
  float* low = nullptr;          // [rows, rank]
  std::byte* low_x = nullptr;    // [rows, rank] working dtype
  uint8_t* predicted = nullptr;  // [rows, intermediate]: 1 for a neuron that is predicted for the row
  // [sequence slots]; used if `has_records`. Null without BackendOptions::attends_pieces.
  int32_t* covered = nullptr;
};

// How far the batch is in the last block with experts.
struct ExpertProgress {
  int32_t layer = -1;        // whose experts are chosen; -1: of none
  int64_t num_units = 0;     // experts that some row chose
  int64_t missing = 0;       // places without a result
  bool shared_done = false;  // the results of the shared expert are there, or there is none
  bool added = false;        // the sums are in the residual stream
};

// How far the batch is in the last sparse MLP.
struct NeuronProgress {
  int32_t layer = -1;        // -1: none
  bool has_decider = false;  // all rows of a decider that streams are computed
  bool decided = false;
  bool added = false;  // the result is in the residual stream
  size_t active = 0;   // neurons
  size_t done = 0;     // of them
};

struct Workspace : BatchArrays {
  // REQUIRES: `spec` outlives it.
  Workspace(const ModelSpec& spec, const BackendOptions& options, Numerics numerics);
  // bytes() of such a workspace, without creating it.
  static Bytes BytesFor(const ModelSpec& spec, const BackendOptions& options);
  Bytes bytes() const;

  // Prepares for the next batch, whose K and V are not appended yet. Fills the arrays of its rows.
  // InvalidArgument if a layer has linear attention and the rows of a sequence are not consecutive.
  absl::Status SetBatch(const MicroBatch& batch, int64_t new_logit_rows);
  // [rows]: rows of the layers' tables of rotations.
  const int32_t* rotations() const { return rope_rows != nullptr ? rope_rows : positions; }
  AttentionRows attention_rows() const { return {.slots = slots, .positions = positions, .count = rows}; }
  // [rows, hidden] working dtype: the input of the layer's MLP half, with ModelConfig::parallel_halves.
  // It follows the batch's residual stream, and goes to other devices with it.
  std::byte* mlp_input() const { return x + rows * hidden * ElementBytes(dtype); }
  // [rows, layer_inputs] working dtype: the inputs of one layer, which travel with the residual stream.
  std::byte* layer_inputs(int64_t layer) const { return Column(config_.layer_inputs_at() + layer * config_.layer_inputs); }
  // [rows, shared_kv_cols] working dtype: keys, then values, that layers share (LayerConfig::shared_kv).
  std::byte* shared_keys(int32_t index) const { return Column(config_.shared_kv_at(index)); }
  std::byte* shared_values(int32_t index) const {
    return Column(config_.shared_kv_at(index) + config_.shared_kv_cols[static_cast<size_t>(index)]);
  }
  // The rows of each sequence, in several runs if snapshots are taken between them. Empty if no layer
  // has linear attention.
  std::span<SequenceRows> sequence_rows() const { return {runs, static_cast<size_t>(num_runs)}; }

  const DType dtype;  // the working dtype
  const int64_t hidden, vocab;
  const float residual_multiplier;
  const int64_t narrow_cols, wide_cols;  // of the experts; 0: no layer has them
  const int64_t sparse_rows;             // of the largest batch of a sparse MLP; 0: none
  const int64_t predictor_rank;          // at most; 0: no MLP has a predictor
  const Numerics numerics;
  const int64_t for_others_rows;  // rows of units that are computed together for another device; 0: none
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
  ExpertProgress experts;
  NeuronProgress neuron_progress;
  int32_t predicted_layer = -1;  // to which `predicted` belongs; -1: to none

  ThreadPool pool;
  LinearWorkspace linear;
  AttentionWorkspace attention;
  // Separate, so that it does not change the state that `attention` carries from call to call.
  std::optional<AttentionWorkspace> for_others;
  std::optional<StripWorkspace> strips;   // of sparse MLPs
  std::optional<ProverWorkspace> prover;  // of those with copies of their deciders
  std::vector<RopeTable> ropes;           // of ModelConfig::ropes

 private:
  absl::Status FindRuns(const MicroBatch& batch);
  // What follows the first `cols` columns of all rows in the stream.
  std::byte* Column(int64_t cols) const { return x + rows * cols * ElementBytes(dtype); }

  const ModelConfig& config_;
  const RopeConfig* const long_rope_;  // whose rows depend on the length of a sequence; null: there is none
  std::vector<Buffer> memory_;
  Bytes array_bytes_ = 0;
};

}  // namespace lime::cpu
