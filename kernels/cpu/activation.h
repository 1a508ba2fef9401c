// Activations of the MLP: fp32 in, rounded once to the working dtype. silu(x) = x / (1 + exp(-x)); relu(x) = 0 for x < 0, else x.
#pragma once

#include <cstdint>

#include "kernels/cpu/thread_pool.h"
#include "planner/base/dtype.h"
#include "planner/plan/model_config.h"

namespace lime::cpu {

// out[t][i] = round(act(gate[t][i]) * up[t][i]).   gate, up: fp32 [tokens, in_stride]; out: [tokens, out_stride] of out_dtype; n elements
// of each row.
void GatedActivation(ThreadPool& pool, Activation activation, const float* gate, const float* up, int64_t tokens, int64_t n,
                     int64_t in_stride, void* out, DType out_dtype, int64_t out_stride);

// out[t][i] = round(act(x[t][i])).
void PlainActivation(ThreadPool& pool, Activation activation, const float* x, int64_t tokens, int64_t n, int64_t in_stride, void* out,
                     DType out_dtype, int64_t out_stride);

}  // namespace lime::cpu
