// Experts: the choice of a router, and the weighted sum of the chosen experts.
//
// Order (portable-f32-1), for one row:
//   scores    kSoftmax: w[e] = exp(product[e] - largest product); lane e mod 16 adds w[e], e
//             ascending; then lanes 8, 4, 2 and 1 apart are added; w[e] / sum
//             kSigmoid: 1 / (1 + exp(-product[e]))
//             kSoftmaxOfBest: the products
//   choice    by score + correction: the largest first, the lower id among equals. With groups, a
//             group has the sum of its two best; only experts of the best groups take part
//   weights   the scores without correction, of the chosen experts in ascending id; kSoftmaxOfBest:
//             exp(score - largest) / sum. If normalised, divided by (their sum + 1e-20). Then times
//             the factor. All these sums add one number after the other
//   sum       chain of fused multiply-adds of weight[s] output[s], in ascending id; then the shared
//             expert: a fused multiply-add of sigmoid(scale) and its output, or an addition; times
//             the multiplier, added to the residual stream, rounded once
// A row depends on nothing else, so neither batches nor threads nor the order in which experts are
// computed change a bit.
#pragma once

#include <cstdint>

#include "kernels/cpu/base/thread_pool.h"
#include "kernels/cpu/delta_rule.h"
#include "planner/base/dtype.h"
#include "planner/plan/model/model_config.h"

namespace lime::cpu {

inline constexpr int64_t kMaxExperts = 1024;        // of a layer
inline constexpr int64_t kMaxExpertsPerToken = 64;  // that compute a row

// products: fp32 [rows, count], the router's; afterwards the scores.   correction: [count], or no
// data.   chosen: [rows, per_token], ids, ascending.   weights: fp32 [rows, per_token]. Returns the
// first row with a score or weight that is not a number; -1: there is none.   REQUIRES: per_token <=
// count <= kMaxExperts, per_token <= kMaxExpertsPerToken; groups divides count; the kept groups have
// at least per_token experts.
int64_t ChooseExperts(ThreadPool& pool, const ExpertsConfig& config, int64_t rows, float* products, const Values& correction,
                      int32_t* chosen, float* weights);

// What the experts have computed for the rows of a batch.
struct ExpertOutputs {
  int64_t rows = 0;
  int64_t width = 0;
  int64_t per_token = 0;
  const float* outputs = nullptr;   // [rows * per_token, stride], in any order
  int64_t stride = 0;               // elements, >= width
  const int32_t* places = nullptr;  // [rows, per_token]: the row of `outputs` of each chosen expert
  const float* weights = nullptr;   // [rows, per_token]
  const float* shared = nullptr;    // [rows, width]; null: there is no shared expert
  // [rows]: sigmoid of it multiplies the shared expert; null: nothing does.
  const float* shared_scale = nullptr;
};

// x = round(x + multiplier * sum).   x: [rows, width] of dtype.
void AddExperts(ThreadPool& pool, const ExpertOutputs& experts, float multiplier, void* x, DType dtype);

}  // namespace lime::cpu
