// Attention over latents, besides the attention itself: a key head of a position is W_k latent, and a
// value is W_v latent. So q (W_k latent) = (W_k^T q) latent, and the sum of values is W_v of the sum of
// latents. W: [heads][plain + value_dim][rank], W_k before W_v in each head.
//
// Order (portable-f32-1): an element of W_k^T q is a chain of fused multiply-adds, rows of W_k
// ascending. In an element of W_v x, lane i % 16 multiplies and adds element i, i ascending; then the
// lanes are added as in ReduceAdd. Both are fp32; the second is rounded once.
#pragma once

#include <cstdint>

#include "kernels/cpu/base/thread_pool.h"
#include "planner/base/dtype.h"
#include "planner/plan/model/model_config.h"

namespace lime::cpu {

// The matrix W of a layer, and the rows of a batch.
struct LatentCall {
  const LatentAttentionConfig& sizes;
  int64_t heads = 0;
  int64_t rows = 0;
  const void* up = nullptr;   // W
  DType dtype = DType::kF32;  // of W: a working dtype
};

// out: [rows, heads, rotated + rank]: the rotated dimensions of q, then W_k^T of the others.   q:
// [rows, heads, plain + rotated]. Neighbours a, b of the rotated dimensions come apart, all a before
// all b, as ApplyRope needs them.
void AbsorbKeys(ThreadPool& pool, const LatentCall& call, const float* q, float* out);

// out: [rows, rotated + rank]: as AbsorbKeys orders it.   kv: [rows, rank + rotated].
void OrderLatents(ThreadPool& pool, const LatentAttentionConfig& sizes, int64_t rows, const float* kv, float* out);

// out: [rows, heads, value_dim]: W_v of every head's sum.   sums: [rows, heads, rank]; both of `dtype`.
void ExpandValues(ThreadPool& pool, const LatentCall& call, const void* sums, DType dtype, void* out);

}  // namespace lime::cpu
