// Linear attention: a causal convolution, then the gated delta rule over a state of fixed size for
// each sequence and value head (Gated DeltaNet, Yang et al. 2024, equation 10).
//
// Rows are processed token by token, in the same way for one row and for many. The state is fp32.
//
// Order (portable-f32-1), for one row:
//   convolution  y = chain of fused multiply-adds of filter[j] x[j], the oldest of the conv_width
//                positions first; x[j] in fp32; then silu(y)
//   unit vectors sum of squares in 32 lanes as in the norms; x * (1 / sqrt(sum + 1e-6)) for k,
//                x * (1 / sqrt(sum + 1e-6) * (1 / sqrt(key_dim))) for q
//   gates        decay = exp(-exp(A_log) * softplus(a + dt_bias)), beta = sigmoid(b)
//   delta rule   for a column c of the state S [key_dim, value_dim]:
//                  S[d] = decay * S[d]
//                  p    = chain of fused multiply-adds of k[d] S[d], d ascending
//                  u    = beta * (v - p)
//                  S[d] = fused multiply-add of k[d] u to S[d]
//                  o    = chain of fused multiply-adds of q[d] S[d], d ascending
//   output       o * (1 / sqrt(mean(o^2) + eps)) * weight * silu(z), rounded once
// Columns of a state are independent, so neither chunks nor batches nor threads change a bit.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/cpu/base/thread_pool.h"
#include "planner/base/dtype.h"
#include "planner/plan/model/model_config.h"

namespace lime::cpu {

inline constexpr int64_t kMaxConvWidth = 8;

// Consecutive rows of one sequence in a micro-batch, and its state in one layer.
struct SequenceRows {
  int64_t begin = 0;
  int64_t end = 0;
  // The state begins as zeros: the first row has position 0.
  bool first = false;
  int32_t snapshot = -1;  // BatchRow::snapshot of the last row; these operators do not use it
  // [value_heads], for each of them columns of S in groups of 16: [key_dim, 16], the last group
  // narrower if 16 does not divide value_dim.
  float* heads = nullptr;
  float* inputs = nullptr;  // [conv_width - 1, conv_cols]: inputs of the convolution, oldest first
};

constexpr int64_t DeltaHeadsFloats(const LinearAttentionConfig& config) {
  return config.value_heads * config.key_dim * config.value_dim;
}
constexpr int64_t DeltaInputsFloats(const LinearAttentionConfig& config) {
  return (config.conv_width - 1) * config.conv_cols();
}

// A small tensor of a block, in any working dtype.
struct Values {
  const void* data = nullptr;
  DType dtype = DType::kF32;
};

// x = silu(causal depthwise convolution of x) along the rows of every sequence, in place, and the
// unit vectors of q and k.   x: fp32 [rows, conv_cols]: q of all key heads, k of all key heads, v of
// all value heads.   filters: [conv_cols, conv_width], oldest position first. Updates the inputs in
// the states.   REQUIRES: conv_width <= kMaxConvWidth; each run begins where the one before ends, and
// each sequence has one.
void ConvolveAndNormalise(ThreadPool& pool, const LinearAttentionConfig& config, std::span<const SequenceRows> runs, const Values& filters,
                          float* x);

// In place: decay: fp32 [rows, value_heads], a before and the factor of the state after; beta: the
// same for b.   decay_log, decay_bias: [value_heads], A_log and dt_bias.
void DeltaGates(ThreadPool& pool, int64_t rows, int64_t value_heads, const Values& decay_log, const Values& decay_bias, float* decay,
                float* beta);

// The recurrence.   x: as ConvolveAndNormalise leaves it; o replaces v.   decay, beta: of
// DeltaGates. Value head j uses key head j / (value_heads / key_heads). Updates the heads of the
// states.
void DeltaRule(ThreadPool& pool, const LinearAttentionConfig& config, std::span<const SequenceRows> runs, const float* decay,
               const float* beta, float* x);

// out = round(RMSNorm of every value head of o * weight * silu(z)).   x: of DeltaRule; z: fp32
// [rows, value_cols]; weight: [value_dim]; out: [rows, value_cols] of out_dtype.
void GatedDeltaOutput(ThreadPool& pool, const LinearAttentionConfig& config, int64_t rows, const float* x, const float* z,
                      const Values& weight, float eps, void* out, DType out_dtype);

}  // namespace lime::cpu
