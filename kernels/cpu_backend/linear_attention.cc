#include "kernels/cpu_backend/linear_attention.h"

#include <span>

#include "absl/strings/str_cat.h"
#include "planner/base/check.h"

namespace lime::cpu {
namespace {

int64_t& PositionsOf(std::span<std::byte> state) {
  return *reinterpret_cast<int64_t*>(state.data());
}

}  // namespace

void LinearAttentionBlock::Bind(const BlockBinder& binder) {
  norm_ = binder.ReadNorm(config_);
  qkv_ = binder.Linear(TensorRole::kQkv, config_.hidden_size);
  z_ = binder.Linear(TensorRole::kZ, config_.hidden_size);
  beta_ = binder.Linear(TensorRole::kBeta, config_.hidden_size);
  decay_ = binder.Linear(TensorRole::kDecay, config_.hidden_size);
  o_ = binder.Linear(TensorRole::kO, sizes().value_cols());
  filters_ = binder.Small(TensorRole::kConv);
  decay_log_ = binder.Small(TensorRole::kDecayLog);
  decay_bias_ = binder.Small(TensorRole::kDecayBias);
  output_norm_ = binder.Small(TensorRole::kOutputNorm);
}

absl::Status LinearAttentionBlock::Forward(const StepMemory& memory) {
  Workspace& ws = memory.ws;
  norm_.Forward(ws, ws.x, ws.rows, ws.normed);  // [tokens, hidden]
  // [tokens, conv_cols], [tokens, value_cols], [tokens, value_heads] twice
  LinearOut(ws, ws.normed, ws.rows, {{&qkv_, ws.qkv}, {&z_, ws.z}, {&beta_, ws.beta}, {&decay_, ws.decay}});
  LIME_RETURN_IF_ERROR(Recur(memory));  // [tokens, value_cols]
  LinearAddToX(ws, ws.attended, o_);    // residual add in the epilogue, rounded once
  return absl::OkStatus();
}

absl::Status LinearAttentionBlock::ForwardRows(const RowsInMemory& rows, const StepMemory& memory) {
  Workspace& ws = memory.ws;
  const TensorRole role = rows.rows.role;
  LinearLayer& layer = linear(role);
  layer.PointAt(rows);
  if (role == TensorRole::kO) {
    if (layer.row_begin == 0) LIME_RETURN_IF_ERROR(Recur(memory));
    LinearAddToX(ws, ws.attended, layer);
    return absl::OkStatus();
  }
  if (role == TensorRole::kQkv && layer.row_begin == 0) norm_.Forward(ws, ws.x, ws.rows, ws.normed);
  float* const out = role == TensorRole::kQkv ? ws.qkv : role == TensorRole::kZ ? ws.z : role == TensorRole::kBeta ? ws.beta : ws.decay;
  LinearOut(ws, ws.normed, ws.rows, {{&layer, out}});
  return absl::OkStatus();
}

LinearLayer& LinearAttentionBlock::linear(TensorRole role) {
  switch (role) {
    case TensorRole::kQkv:
      return qkv_;
    case TensorRole::kZ:
      return z_;
    case TensorRole::kBeta:
      return beta_;
    case TensorRole::kDecay:
      return decay_;
    default:
      return o_;
  }
}

absl::Status LinearAttentionBlock::FindStates(const StepMemory& memory) const {
  const Workspace& ws = memory.ws;
  for (SequenceRows& run : ws.sequence_rows()) {
    const int32_t slot = ws.slots[run.begin];
    const std::span<std::byte> state = memory.states.state(slot, layer_);
    if (state.empty()) return absl::InternalError(absl::StrCat("sequence slot ", slot, " has no state in layer ", layer_));
    run.first = ws.positions[run.begin] == 0;
    int64_t positions = run.first ? 0 : PositionsOf(state);
    for (int64_t row = run.begin; row < run.end; ++row, ++positions) {
      if (ws.positions[row] == positions) continue;
      return absl::InternalError(absl::StrCat("the state of sequence slot ", slot, " in layer ", layer_, " has ", positions,
                                              " positions, the row is at ", ws.positions[row]));
    }
    run.heads = reinterpret_cast<float*>(state.data() + kStateHeaderBytes);
    run.inputs = run.heads + DeltaHeadsFloats(sizes());
    LIME_CHECK_GE(static_cast<Bytes>(state.size()),
                  kStateHeaderBytes + (DeltaHeadsFloats(sizes()) + DeltaInputsFloats(sizes())) * static_cast<Bytes>(sizeof(float)));
  }
  return absl::OkStatus();
}

absl::Status LinearAttentionBlock::Recur(const StepMemory& memory) const {
  Workspace& ws = memory.ws;
  LIME_RETURN_IF_ERROR(FindStates(memory));
  const std::span<SequenceRows> runs = ws.sequence_rows();
  ConvolveAndNormalise(ws.pool, sizes(), runs, filters_, ws.qkv);
  DeltaGates(ws.pool, ws.rows, sizes().value_heads, decay_log_, decay_bias_, ws.decay, ws.beta);
  DeltaRule(ws.pool, sizes(), runs, ws.decay, ws.beta, ws.qkv);
  GatedDeltaOutput(ws.pool, sizes(), ws.rows, ws.qkv, ws.z, output_norm_, static_cast<float>(config_.norm_eps), ws.attended, ws.dtype);
  for (const SequenceRows& run : runs) PositionsOf(memory.states.state(ws.slots[run.begin], layer_)) = ws.positions[run.end - 1] + 1;
  return absl::OkStatus();
}

}  // namespace lime::cpu
