// Linear attention as a block: projections, convolution, the gated delta rule over the states of
// the sequences, and a gated norm of the result (kernels/cpu/delta_rule.h).
#pragma once

#include <cstdint>

#include "kernels/cpu/delta_rule.h"
#include "kernels/cpu_backend/block.h"
#include "kernels/cpu_backend/layers.h"
#include "planner/plan/model/model_config.h"

namespace lime::cpu {

class LinearAttentionBlock final : public Block {
 public:
  LinearAttentionBlock(const ModelConfig& config, int32_t layer) : config_(config), layer_(layer) {}

  void Bind(const BlockBinder& binder) override;
  // Updates ws.x in place, and the states of the batch's sequences.
  absl::Status Forward(const StepMemory& memory) override;
  absl::Status ForwardRows(const RowsInMemory& rows, const StepMemory& memory) override;

 private:
  const LinearAttentionConfig& sizes() const { return *config_.linear_attention; }
  LinearLayer& linear(TensorRole role);
  // Points the batch's runs at their states.
  absl::Status FindStates(const StepMemory& memory) const;
  // The output of a layer before Recur.
  static float* OutOf(const Workspace& ws, TensorRole role);
  // ws.qkvz, beta_decay -> ws.qkv, z, beta, decay.
  void SplitKeyHeads(Workspace& ws) const;
  // ws.qkv, z, beta, decay -> ws.attended, once for each batch. With by_key_head, SplitKeyHeads
  // first.
  absl::Status Recur(const StepMemory& memory) const;
  // The state has the rows of the run now; a snapshot is taken if the run ends with one.
  void EndRun(const StepMemory& memory, const SequenceRows& run) const;

  const ModelConfig& config_;
  const int32_t layer_;
  Norm norm_;
  LinearLayer qkv_, z_, beta_, decay_, o_;
  LinearLayer qkvz_, beta_decay_;  // with by_key_head, instead of the first four
  Values filters_, decay_log_, decay_bias_, output_norm_;
};

}  // namespace lime::cpu
