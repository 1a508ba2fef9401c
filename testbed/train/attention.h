// Causal grouped-query attention with rotary positions, for training on the CPU, with a forward and
// a backward pass of its own.
#pragma once

#include <ATen/ATen.h>

namespace lime::train {

struct AttentionShape {
  int64_t batch = 0, tokens = 0, heads = 0, kv_heads = 0, head_dim = 0;
  double rope_theta = 10000.0;
};

// q: [batch * tokens, heads * head_dim], k and v: [batch * tokens, kv_heads * head_dim], fp32;
// returns the shape of q. Rotates q and k by position (each value of a head's first half with its
// partner in the second half), scales by head_dim^-0.5, masks the future. Differentiable in q, k
// and v. Keeps no [tokens, tokens] matrix: the backward pass computes the probabilities again.
at::Tensor CausalAttention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const AttentionShape& shape);

}  // namespace lime::train
