#include "kernels/cpu_backend/linear_attention.h"

#include <algorithm>
#include <cstring>
#include <span>

#include "absl/strings/str_cat.h"
#include "planner/base/check.h"

namespace lime::cpu {
namespace {

int64_t& PositionsOf(std::span<std::byte> state) {
  return *reinterpret_cast<int64_t*>(state.data());
}

// How many of the first runs are of different sequences, so that they can be computed together.
size_t NumApart(const Workspace& ws, std::span<const SequenceRows> runs) {
  size_t count = 1;
  while (count < runs.size() && ws.slots[runs[count].begin] != ws.slots[runs[count - 1].begin]) ++count;
  return count;
}

}  // namespace

void LinearAttentionBlock::Bind(const BlockBinder& binder) {
  norm_ = binder.ReadNorm(config_);
  qkv_ = binder.Linear(TensorRole::kQkv, config_.hidden_size);
  z_ = binder.Linear(TensorRole::kZ, config_.hidden_size);
  beta_ = binder.Linear(TensorRole::kBeta, config_.hidden_size);
  decay_ = binder.Linear(TensorRole::kDecay, config_.hidden_size);
  qkvz_ = binder.Linear(TensorRole::kQkvz, config_.hidden_size);
  beta_decay_ = binder.Linear(TensorRole::kBetaDecay, config_.hidden_size);
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
  if (sizes().by_key_head) {
    LinearOut(ws, ws.normed, ws.rows, {{&qkvz_, ws.qkvz}, {&beta_decay_, ws.beta_decay}});
  } else {
    LinearOut(ws, ws.normed, ws.rows, {{&qkv_, ws.qkv}, {&z_, ws.z}, {&beta_, ws.beta}, {&decay_, ws.decay}});
  }
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
  const bool is_first = role == TensorRole::kQkv || role == TensorRole::kQkvz;
  if (is_first && layer.row_begin == 0) norm_.Forward(ws, ws.x, ws.rows, ws.normed);
  LinearOut(ws, ws.normed, ws.rows, {{&layer, OutOf(ws, role)}});
  return absl::OkStatus();
}

float* LinearAttentionBlock::OutOf(const Workspace& ws, TensorRole role) {
  switch (role) {
    case TensorRole::kQkv:
      return ws.qkv;
    case TensorRole::kZ:
      return ws.z;
    case TensorRole::kBeta:
      return ws.beta;
    case TensorRole::kDecay:
      return ws.decay;
    case TensorRole::kQkvz:
      return ws.qkvz;
    default:
      return ws.beta_decay;
  }
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
    case TensorRole::kQkvz:
      return qkvz_;
    case TensorRole::kBetaDecay:
      return beta_decay_;
    default:
      return o_;
  }
}

absl::Status LinearAttentionBlock::FindStates(const StepMemory& memory) const {
  const Workspace& ws = memory.ws;
  int64_t positions = 0;
  for (SequenceRows& run : ws.sequence_rows()) {
    const int32_t slot = ws.slots[run.begin];
    const std::span<std::byte> state = memory.states.state(slot, layer_);
    if (state.empty()) return absl::InternalError(absl::StrCat("sequence slot ", slot, " has no state in layer ", layer_));
    run.first = ws.positions[run.begin] == 0;
    const bool goes_on = run.begin > 0 && ws.slots[run.begin - 1] == slot;  // the run before is of the same sequence
    if (!goes_on) positions = run.first ? 0 : PositionsOf(state);
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

// A key head j has its q and k, and of its r value heads the v's, the z's, the betas and the decays.
// Value head j r + i is number i of them.
void LinearAttentionBlock::SplitKeyHeads(Workspace& ws) const {
  const LinearAttentionConfig& c = sizes();
  const int64_t values = c.value_heads / c.key_heads, cols = values * c.value_dim;
  ParallelRows(ws.pool, ws.rows, c.conv_cols() + c.value_cols(), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const float* in = ws.qkvz + row * (c.conv_cols() + c.value_cols());
      const float* gates = ws.beta_decay + row * 2 * c.value_heads;
      float* const qkv = ws.qkv + row * c.conv_cols();
      for (int64_t j = 0; j < c.key_heads; ++j, in += 2 * (c.key_dim + cols), gates += 2 * values) {
        std::copy_n(in, c.key_dim, qkv + j * c.key_dim);
        std::copy_n(in + c.key_dim, c.key_dim, qkv + c.key_cols() + j * c.key_dim);
        std::copy_n(in + 2 * c.key_dim, cols, qkv + 2 * c.key_cols() + j * cols);
        std::copy_n(in + 2 * c.key_dim + cols, cols, ws.z + row * c.value_cols() + j * cols);
        std::copy_n(gates, values, ws.beta + row * c.value_heads + j * values);
        std::copy_n(gates + values, values, ws.decay + row * c.value_heads + j * values);
      }
    }
  });
}

absl::Status LinearAttentionBlock::Recur(const StepMemory& memory) const {
  Workspace& ws = memory.ws;
  LIME_RETURN_IF_ERROR(FindStates(memory));
  if (sizes().by_key_head) SplitKeyHeads(ws);
  DeltaGates(ws.pool, ws.rows, sizes().value_heads, decay_log_, decay_bias_, ws.decay, ws.beta);
  std::span<SequenceRows> runs = ws.sequence_rows();
  while (!runs.empty()) {
    const std::span<SequenceRows> apart = runs.first(NumApart(ws, runs));
    ConvolveAndNormalise(ws.pool, sizes(), apart, filters_, ws.qkv);
    DeltaRule(ws.pool, sizes(), apart, ws.decay, ws.beta, ws.qkv);
    for (const SequenceRows& run : apart) EndRun(memory, run);
    runs = runs.subspan(apart.size());
  }
  GatedDeltaOutput(ws.pool, sizes(), ws.rows, ws.qkv, ws.z, output_norm_, static_cast<float>(config_.norm_eps), ws.attended, ws.dtype);
  return absl::OkStatus();
}

void LinearAttentionBlock::EndRun(const StepMemory& memory, const SequenceRows& run) const {
  const int32_t slot = memory.ws.slots[run.begin];
  const std::span<std::byte> state = memory.states.state(slot, layer_);
  PositionsOf(state) = memory.ws.positions[run.end - 1] + 1;
  if (run.snapshot < 0) return;
  const std::span<std::byte> snapshot = memory.states.snapshot(slot, run.snapshot, layer_);
  std::memcpy(snapshot.data(), state.data(), state.size());
}

}  // namespace lime::cpu
