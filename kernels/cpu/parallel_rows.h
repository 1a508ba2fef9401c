// Splits the rows of an operator over the compute threads.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/cpu/thread_pool.h"

namespace lime::cpu {

// Calls fn(begin, end) on ranges that cover [0, rows), in pieces of about 16K elements; directly where there is one piece of work only.
template <typename Fn>
void ParallelRows(ThreadPool& pool, int64_t rows, int64_t elements_per_row, Fn&& fn) {
  constexpr int64_t kElementsPerPiece = 16 * 1024;
  const int64_t rows_per_piece = std::max<int64_t>(1, kElementsPerPiece / std::max<int64_t>(1, elements_per_row));
  const int64_t pieces = (rows + rows_per_piece - 1) / rows_per_piece;
  if (pieces <= 1 || pool.num_threads() == 1) {
    if (rows > 0) fn(int64_t{0}, rows);
    return;
  }
  pool.ParallelFor(pieces,
                   [&](int64_t piece, int /*thread*/) { fn(piece * rows_per_piece, std::min(rows, (piece + 1) * rows_per_piece)); });
}

}  // namespace lime::cpu
