// A block cut into the pieces that stream: rows of its matrices, in order of use.
//
// The rows of a linear layer are independent dot products, so a piece is computed as it arrives and no bit changes. What is small (norms,
// biases, learned positions) is never cut: it stays in memory whatever streams.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "planner/base/bytes.h"
#include "planner/plan/model_spec.h"

namespace lime {

// Longest piece. Small ones need little memory to stay ahead of the computation; much smaller ones would cost the disk its rate.
inline constexpr Bytes kPieceBytes = 16 * kMiB;

// Rows [begin, end) of one matrix, with all its input features and, where it is packed, the scales and biases of these rows.
struct MatrixRows {
  TensorRole role = TensorRole::kQ;
  int64_t begin = 0;
  int64_t end = 0;

  friend bool operator==(const MatrixRows&, const MatrixRows&) = default;
};

// Some rows of a matrix in memory.
struct RowsInMemory {
  MatrixRows rows;
  // Of the first row: dense or packed weights; scales and biases of packed groups, else null.
  const std::byte* weight = nullptr;
  const std::byte* scales = nullptr;
  const std::byte* biases = nullptr;
};

struct BlockPiece {
  std::vector<MatrixRows> rows;  // in order of use
  Bytes bytes = 0;

  friend bool operator==(const BlockPiece&, const BlockPiece&) = default;
};

// Whether a tensor stays in memory when its block streams.
bool IsKept(const TensorSpec& tensor);
Bytes KeptBytes(const BlockSpec& block);

// All rows of the block's matrices, in order of use, in pieces of about equal size and at most `max_bytes` (one group of 64 rows at
// least). Pure: the same for everyone who knows the model.
std::vector<BlockPiece> CutBlock(const BlockSpec& block, Bytes max_bytes = kPieceBytes);

}  // namespace lime
