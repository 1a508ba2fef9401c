// Copies neurons from rows of their matrices to where a read of their bundles would put them: a row of
// up as it is, a column of down from the rows that have it.
//
// Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "planner/base/bytes.h"

namespace lime {

// A neuron, and the memory for a row of up or a column of down.
struct NeuronTarget {
  int32_t neuron = 0;
  std::byte* memory = nullptr;
};

// Rows [begin, end) of a matrix, or codes of packed ones.
struct MatrixPiece {
  const std::byte* rows = nullptr;
  int64_t begin = 0, end = 0;
  Bytes row_bytes = 0;
};

// The rows of the piece that are neurons. `targets`: ascending.
void CopyNeuronRows(const MatrixPiece& piece, std::span<const NeuronTarget> targets);

// Of each target, the elements of its column that the piece has. `bits`: of an element, 16, 32 or those
// of a packed code. A column is a little-endian stream of bits, as a row is.
// REQUIRES: the piece begins at a multiple of 32; of codes, it has a multiple of 32 rows
void CopyNeuronColumns(const MatrixPiece& piece, int bits, std::span<const NeuronTarget> targets);

}  // namespace lime
