// Rows of the embedding into the residual stream.
#pragma once

#include <cstdint>

#include "kernels/cpu/linear.h"
#include "kernels/cpu/thread_pool.h"
#include "planner/base/dtype.h"

namespace lime::cpu {

// Learned positions, added to the token's row.
struct LearnedPositions {
  const void* table = nullptr;         // [positions + offset, cols] in the working dtype; null: none
  int64_t offset = 0;                  // row of position 0
  const int32_t* positions = nullptr;  // [tokens]
};

// out[t] = row ids[t] of `table`, in out_dtype, rounded once: a dense row as it is (table.dtype == out_dtype copies bits); of packed
// groups, fused scale * q + bias; plus the row of the position, added in fp32 before the rounding. out: [tokens, out_stride]. REQUIRES:
// every id and position lies within its table. Allocates nothing.
void EmbedTokens(ThreadPool& pool, const Matrix& table, const int32_t* ids, int64_t tokens, const LearnedPositions& learned, void* out,
                 DType out_dtype, int64_t out_stride);

}  // namespace lime::cpu
