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
  // ws.qkv, z, beta, decay -> ws.attended, once for each batch.
  absl::Status Recur(const StepMemory& memory) const;

  const ModelConfig& config_;
  const int32_t layer_;
  Norm norm_;
  LinearLayer qkv_, z_, beta_, decay_, o_;
  Values filters_, decay_log_, decay_bias_, output_norm_;
};

}  // namespace lime::cpu
