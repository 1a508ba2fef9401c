// The blocks of a decoder, their forward passes from top to bottom. linear_attention.h has one
// more.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "common/proven_zeros/decider_copy.h"
#include "kernels/backend.h"
#include "kernels/cpu/attention.h"
#include "kernels/cpu/delta_rule.h"
#include "kernels/cpu_backend/block.h"
#include "kernels/cpu_backend/layers.h"
#include "planner/plan/model/model_config.h"
#include "planner/plan/model/neuron_predictor.h"

namespace lime::cpu {

class EmbeddingBlock final : public Block {
 public:
  explicit EmbeddingBlock(const ModelConfig& config) : config_(config) {}

  void Bind(const BlockBinder& binder) override;
  absl::Status Forward(const StepMemory& memory) override;
  // Does nothing: an embedding that streams is computed by ForwardGiven.
  absl::Status ForwardRows(const RowsInMemory& rows, const StepMemory& memory) override;

  // Forward from a table with one row for each row of the batch, in the same order.
  absl::Status ForwardGiven(const RowsInMemory& rows, const StepMemory& memory);

 private:
  const ModelConfig& config_;
  LinearLayer table_;                          // [vocab, hidden]
  const std::byte* position_table_ = nullptr;  // [positions + offset, hidden] working dtype, or null
  // With ModelConfig::layer_inputs.
  void LookUpLayers(Workspace& ws) const;     // ws.tokens -> ws.layer_rows
  void MakeLayerInputs(Workspace& ws) const;  // ws.x, layer_rows -> the inputs of all layers
  void Embed(Workspace& ws) const;            // ws.tokens -> ws.x

  LinearLayer layer_table_, layer_projection_;
  Values layer_norm_;
};

class AttentionBlock : public Block {
 public:
  AttentionBlock(const ModelConfig& config, int32_t layer) : config_(config), layer_(layer) {}

  void Bind(const BlockBinder& binder) override;
  // Updates ws.x in place; appends this step's K and V to the layer's pages.
  absl::Status Forward(const StepMemory& memory) override;
  absl::Status ForwardRows(const RowsInMemory& rows, const StepMemory& memory) override;

  // Call between the rows of v and of o: attends to some pieces of KV, from 0 on, before the rest.
  absl::Status AttendToPieces(Workspace& ws, const KvView& kv, const AttentionPieces& pieces) const;
  // Call between the rows of v and of o: makes ws.q the final queries and appends K and V to `kv`.
  absl::Status Queries(Workspace& ws, const KvView& kv) const;
  // Call after Queries, instead of AttendToPieces: sets `records` of the pieces before ws.taken.
  absl::Status ContinueFromRecords(Workspace& ws, const float* records) const;

 protected:
  void Normalise(Workspace& ws) const;  // ws.x -> ws.normed; with parallel halves also ws.mlp_input()
  // Appends ws.k and ws.v to `kv`; normalises and rotates ws.q and ws.k.
  virtual absl::Status Append(Workspace& ws, const KvView& kv) const;
  // Fails if a row's position has no page.
  static absl::Status CheckPages(const Workspace& ws, const KvView& kv);
  void Rotate(Workspace& ws) const;  // ws.q, k
  // Takes ws.k and ws.v from the residual stream, or sends them with it (LayerConfig::shared_kv).
  void ShareKeys(Workspace& ws) const;
  absl::Status Attend(Workspace& ws, const KvView& kv) const;  // ws.q, k, v -> ws.attended

  const ModelConfig& config_;
  const int32_t layer_;
  Norm norm_, after_norm_;
  LinearLayer o_;

 private:
  int64_t head_dim() const { return config_.layer(layer_).head_dim; }
  int64_t kv_heads() const { return config_.layer(layer_).num_kv_heads; }
  LinearLayer& linear(TensorRole role) {
    if (role == TensorRole::kQkvByHead) return by_head_;
    return role == TensorRole::kQ ? q_ : role == TensorRole::kK ? k_ : role == TensorRole::kV ? v_ : o_;
  }
  // The output of q: with a gate, an array from which Append takes ws.q.
  float* QOut(const Workspace& ws) const { return config_.attention_gate ? ws.q_and_gate : ws.q; }
  // For the batch in the workspace, whose gates it has.
  AttentionShape ShapeOf(const Workspace& ws) const;
  void TakeQueries(Workspace& ws) const;  // ws.q_and_gate -> ws.q
  void SplitHeads(Workspace& ws) const;   // ws.by_head -> ws.q, k, v

  Norm mlp_norm_;
  LinearLayer q_, k_, v_;
  LinearLayer by_head_;  // instead of q, k and v, with ModelConfig::qkv_by_head
  // [head_dim]: RMSNorm over every head; with qk_norm_all_heads [heads * head_dim]: over all at once;
  // no data: there is none.
  Values q_norm_, k_norm_;
  Values sinks_;  // [heads]; no data: there are none
};

class MlpBlock final : public Block {
 public:
  MlpBlock(const ModelConfig& config, int32_t layer) : config_(config), layer_(layer) {}

  void Bind(const BlockBinder& binder) override;
  // Updates ws.x in place.
  absl::Status Forward(const StepMemory& memory) override;
  absl::Status ForwardRows(const RowsInMemory& rows, const StepMemory& memory) override;

  // Backend::DecideNeurons, ActiveNeurons and ComputeNeurons (neurons.cc).
  absl::StatusOr<std::span<const int32_t>> DecideNeurons(Workspace& ws);
  absl::StatusOr<std::span<const int32_t>> ActiveNeurons(Workspace& ws, int64_t row);
  absl::Status ForwardNeurons(Workspace& ws, std::span<const NeuronInMemory> neurons) const;
  // Backend::BindCopy, BindPredictor and InputOfNeurons.
  absl::Status BindCopy(const Workspace& ws, const DeciderView& copy, std::shared_ptr<const void> storage);
  absl::Status BindPredictor(const Workspace& ws, const PredictorView& predictor, std::shared_ptr<const void> storage);
  const std::byte* InputOfNeurons(const Workspace& ws) const { return config_.parallel_halves ? ws.mlp_input() : ws.normed; }

 private:
  bool gated() const { return gate_.outputs > 0; }
  // Pre-activations of the decider up to this number are zeros: 0 but for FATReLU.
  float threshold() const { return static_cast<float>(config_.activation_limit); }
  absl::Status CheckSparse(const Workspace& ws) const;
  absl::Status CheckNext(const Workspace& ws, std::span<const NeuronInMemory> neurons) const;
  // The neurons that are not proven to be zero for rows of the normalised input -> ws.neurons. Returns
  // their number.
  size_t ProveNeurons(Workspace& ws, const std::byte* input, int64_t rows) const;
  // A row of the decider comes with each neuron.
  bool brings_decider() const { return copy_ || predictor_; }
  // Decides the neurons of each row from the normalised input -> ws.predicted, unless that is done.
  void Predict(Workspace& ws, const std::byte* input);
  // Makes zeros of ws.mixed where a neuron is not predicted for a row. The columns are `ids`, or all
  // neurons if that is empty.
  void KeepPredicted(Workspace& ws, std::span<const int32_t> ids = {}) const;
  // The activations of the next neurons -> the first columns of ws.mixed.
  void ActivateNeurons(Workspace& ws, std::span<const NeuronInMemory> neurons) const;
  // Rows of a matrix -> the first columns of `out`. `data_of`: of a neuron.
  template <typename DataOf>
  void ComputeStrips(Workspace& ws, const LinearLayer& layer, std::span<const NeuronInMemory> neurons, const DataOf& data_of,
                     float* out) const;
  LinearLayer& linear(TensorRole role) {
    if (role == TensorRole::kLayerGate || role == TensorRole::kLayerUp) return role == TensorRole::kLayerUp ? layer_up_ : layer_gate_;
    return role == TensorRole::kGate ? gate_ : role == TensorRole::kUp ? up_ : down_;
  }
  const std::byte* Input(Workspace& ws) const;                    // the normalised input: [tokens, hidden]
  const std::byte* InputOfRow(Workspace& ws, int64_t row) const;  // [hidden]
  void Activate(Workspace& ws) const;                             // ws.gate, up -> ws.mixed, of predicted neurons if there is a predictor
  void ActivateInputs(Workspace& ws) const;                       // ws.gate, the layer's inputs -> ws.mixed
  // Of the sum with the MLP's result.
  float mlp_scale() const { return layer_gate_.outputs > 0 ? 1 : layer_scale_; }

  const ModelConfig& config_;
  const int32_t layer_;
  Norm norm_, after_norm_;
  float layer_scale_ = 1;
  LinearLayer gate_, up_, down_;       // no gate in a two-matrix MLP
  LinearLayer layer_gate_, layer_up_;  // with ModelConfig::layer_inputs
  // As they are bound: rows that stream change the others.
  LinearLayer bound_decider_, bound_up_, bound_down_;
  std::optional<DeciderView> copy_;
  std::shared_ptr<const void> copy_storage_;
  std::optional<PredictorView> predictor_;
  std::shared_ptr<const void> predictor_storage_;
  Norm layer_after_norm_;
};

class HeadBlock final : public Block {
 public:
  explicit HeadBlock(const ModelConfig& config) : config_(config) {}

  void Bind(const BlockBinder& binder) override;
  // Fills ws.logits for the rows in ws.head_rows.
  absl::Status Forward(const StepMemory& memory) override;
  // The rows may come in any order.
  absl::Status ForwardRows(const RowsInMemory& rows, const StepMemory& memory) override;

 private:
  void Select(Workspace& ws) const;   // ws.x -> ws.head_x
  void Project(Workspace& ws) const;  // ws.head_x -> ws.logits

  const ModelConfig& config_;
  Norm norm_;
  LinearLayer output_;  // [vocab, hidden]
};

// The shape of a layer's attention over rows of heads * head_dim floats, without gates.
AttentionShape AttentionShapeOf(const ModelConfig& config, int64_t layer);

}  // namespace lime::cpu
