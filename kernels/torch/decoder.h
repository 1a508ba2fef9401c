// The blocks of a decoder in ATen's operators: the forward pass of kernels/cpu_backend/decoder.h, written for comparison and not for speed.
#pragma once

#include <ATen/ATen.h>

#include <optional>

#include "kernels/torch/ops.h"
#include "planner/plan/model_config.h"

namespace lime::torch_ops {

// The rows of a micro-batch, [rows] int32 each.
struct BatchRows {
  at::Tensor tokens, slots, positions;
};

// cos and sin of every position, [positions, head_dim / 2] fp32 each; undefined where positions are learned.
struct RopeTensors {
  at::Tensor cos, sin;
};

// RMSNorm, or LayerNorm for families that have it.
struct Norm {
  at::Tensor weight;  // [width]; undefined in a LayerNorm without affine parameters
  at::Tensor bias;    // [width]; LayerNorm only
  double eps = 0;
  bool centred = false;  // LayerNorm

  at::Tensor Forward(const at::Tensor& x) const { return centred ? LayerNorm(x, weight, bias, eps) : RmsNorm(x, weight, eps); }
};

// x: [rows, hidden] working dtype: the residual stream, which every block returns anew.
struct EmbeddingBlock {
  LinearWeight table;         // [vocab, hidden]
  at::Tensor position_table;  // [positions + offset, hidden], or undefined
  int64_t position_offset = 0;

  at::Tensor Forward(const BatchRows& batch, int64_t hidden, at::ScalarType working) const;
};

struct AttentionBlock {
  Norm norm;
  LinearWeight q, k, v, o;
  at::Tensor q_norm, k_norm;  // [head_dim], or undefined
  int64_t window = 0;         // positions a token sees, itself included; 0: all

  // Appends this step's K and V to `kv`.
  at::Tensor Forward(const at::Tensor& x, const BatchRows& batch, const KvLayer& kv, const RopeTensors& rope) const;
};

struct MlpBlock {
  Norm norm;
  std::optional<LinearWeight> gate;  // nothing in a two-matrix MLP
  LinearWeight up, down;
  Activation activation = Activation::kSilu;

  at::Tensor Forward(const at::Tensor& x) const;
};

struct HeadBlock {
  std::optional<Norm> norm;
  LinearWeight output;  // [vocab, hidden]

  // x: [logit rows, hidden].   Returns [logit rows, rows of `weight`] fp32; `weight` is the output, or some rows of it.
  at::Tensor Forward(const at::Tensor& x, const LinearWeight& weight) const { return Linear(norm ? norm->Forward(x) : x, weight); }
};

}  // namespace lime::torch_ops
