// Divides linear attention into work items. No division changes a bit of the result.
#pragma once

#include <cstdint>

#include "planner/plan/model/model_config.h"

namespace lime::cpu {

inline constexpr int64_t kConvCols = 128;  // columns of the convolution in one item
// Groups of 16 columns of a head's state in one item. With a key_dim of 128 they have 16 KiB, which
// stay in L1 from row to row.
inline constexpr int kDeltaGroups = 2;

// Input of every work item of DeltaRule.
struct DeltaCall {
  LinearAttentionConfig config;
  const float* decay = nullptr;  // [rows, value_heads]
  const float* beta = nullptr;   // [rows, value_heads]
  float* x = nullptr;            // [rows, conv_cols]
};

}  // namespace lime::cpu
