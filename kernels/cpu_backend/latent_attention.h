// The attention half of a layer that keeps latents instead of keys and values (kernels/cpu/latent.h).
#pragma once

#include <cstdint>

#include "kernels/cpu/latent.h"
#include "kernels/cpu_backend/decoder.h"

namespace lime::cpu {

class LatentAttentionBlock final : public AttentionBlock {
 public:
  LatentAttentionBlock(const ModelConfig& config, int32_t layer) : AttentionBlock(config, layer) {}

  void Bind(const BlockBinder& binder) override;
  // Updates ws.x in place; appends this step's latents to the layer's pages.
  absl::Status Forward(const StepMemory& memory) override;
  absl::Status ForwardRows(const RowsInMemory& rows, const StepMemory& memory) override;

 private:
  // ws.q_heads -> ws.q; ws.v -> ws.k, which it appends to `kv`.
  absl::Status Append(Workspace& ws, const KvView& kv) const override;
  void NormaliseQueries(Workspace& ws) const;                           // ws.q_down -> ws.q_down_x
  absl::Status AttendToLatents(Workspace& ws, const KvView& kv) const;  // -> ws.values
  LatentCall CallOf(const Workspace& ws) const;
  const LatentAttentionConfig& sizes() const { return *config_.latent_attention; }
  LinearLayer& linear(TensorRole role) {
    return role == TensorRole::kQDown ? q_down_ : role == TensorRole::kQUp ? q_up_ : role == TensorRole::kKvDown ? kv_down_ : o_;
  }

  LinearLayer q_down_, q_up_, kv_down_;
  Values q_norm_, kv_norm_;  // of what the matrices kQDown and kKvDown give
  Values kv_up_;             // [heads * (plain + value_dim), rank]
};

}  // namespace lime::cpu
