// Cuts a block into the parts that stream: rows of its matrices, in order of use.
//
// Rows of a linear layer are independent dot products. A part is computed when it arrives, and
// results do not change by a bit. Small tensors (norms, biases, learned positions) are never cut:
// they are pinned in memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "planner/base/bytes.h"
#include "planner/plan/model/model_spec.h"

namespace lime {

// Largest part. Small parts need little memory to load ahead of the computation. Much smaller parts
// would reduce the disk's rate.
inline constexpr Bytes kPartBytes = 16 * kMiB;

// Rows [begin, end) of one matrix with all input features. If it is packed, with their scales and
// biases.
struct MatrixRows {
  TensorRole role = TensorRole::kQ;
  int64_t begin = 0;
  int64_t end = 0;
  int32_t expert = -1;  // whose matrix it is; -1: of no expert

  friend bool operator==(const MatrixRows&, const MatrixRows&) = default;
};

// Rows of a matrix in memory.
struct RowsInMemory {
  MatrixRows rows;
  // Pointers to the first row. `scales` and `biases` belong to packed groups; null if dense.
  const std::byte* weight = nullptr;
  const std::byte* scales = nullptr;
  const std::byte* biases = nullptr;
};

struct BlockPart {
  std::vector<MatrixRows> rows;  // in order of use
  Bytes bytes = 0;

  friend bool operator==(const BlockPart&, const BlockPart&) = default;
};

// Whether a tensor stays in memory when its block streams. PinnedBytes: the bytes of these tensors.
bool IsPinned(const TensorSpec& tensor);
Bytes PinnedBytes(const BlockSpec& block);

// All rows of the block's matrices in order of use, in parts of about equal size and at most
// `max_bytes`, but at least one group of 64 rows. Experts have parts of their own: one or more whole
// experts each, or rows of one expert if it is larger than a part. Pure: every device gets the same
// parts.
std::vector<BlockPart> CutBlock(const BlockSpec& block, Bytes max_bytes = kPartBytes);

}  // namespace lime
