#include "planner/plan/model/block_parts.h"

#include <algorithm>

namespace lime {
namespace {

constexpr int64_t kRowGroup = 64;  // cuts are multiples of it: whole tiles of the kernels

// One matrix with all tensors of its packing.
struct WholeMatrix {
  TensorRole role;
  int64_t rows = 0;
  Bytes bytes = 0;

  Bytes RowBytes() const { return bytes / rows; }
};

std::vector<WholeMatrix> Matrices(const BlockSpec& block) {
  std::vector<WholeMatrix> matrices;
  for (const TensorSpec& tensor : block.tensors) {
    if (IsPinned(tensor)) continue;
    if (matrices.empty() || matrices.back().role != tensor.role) matrices.push_back({tensor.role, tensor.info.shape[0], 0});
    matrices.back().bytes += tensor.info.bytes;
  }
  return matrices;
}

}  // namespace

bool IsPinned(const TensorSpec& tensor) {
  return tensor.info.shape.size() != 2 || tensor.role == TensorRole::kPositionEmbedding;
}

Bytes PinnedBytes(const BlockSpec& block) {
  Bytes bytes = 0;
  for (const TensorSpec& tensor : block.tensors) bytes += IsPinned(tensor) ? tensor.info.bytes : 0;
  return bytes;
}

std::vector<BlockPart> CutBlock(const BlockSpec& block, Bytes max_bytes) {
  const std::vector<WholeMatrix> matrices = Matrices(block);
  Bytes total = 0, group = 0;
  for (const WholeMatrix& matrix : matrices) {
    total += matrix.bytes;
    group = std::max(group, matrix.RowBytes() * kRowGroup);
  }
  // Rounding to row groups may move a cut by one group, so the planned size is smaller by one
  // group.
  const Bytes room = std::max(max_bytes - group, std::max<Bytes>(1, std::min(group, max_bytes)));
  const int64_t count = std::max<int64_t>(1, (total + room - 1) / room);

  std::vector<BlockPart> parts(1);
  Bytes done = 0;
  for (const WholeMatrix& matrix : matrices) {
    const Bytes row_bytes = matrix.RowBytes();
    for (int64_t begin = 0; begin < matrix.rows;) {
      const int64_t number = std::min(count, static_cast<int64_t>(parts.size()));
      const Bytes target = static_cast<Bytes>(static_cast<__int128>(total) * number / count) - done;
      const int64_t wanted = RoundUp(RoundUp(std::max<Bytes>(0, target), row_bytes) / row_bytes, kRowGroup);
      const int64_t fitting = (max_bytes - parts.back().bytes) / row_bytes;
      int64_t end = std::min({matrix.rows, begin + wanted, begin + fitting});
      if (end < matrix.rows) end = end / kRowGroup * kRowGroup;
      if (end <= begin && parts.back().rows.empty()) end = std::min(matrix.rows, begin + kRowGroup);
      if (end > begin) {
        parts.back().rows.push_back({matrix.role, begin, end});
        parts.back().bytes += (end - begin) * row_bytes;
        done += (end - begin) * row_bytes;
      }
      if (end <= begin || end < begin + std::min(wanted, matrix.rows - begin) || done >= total * number / count) parts.emplace_back();
      begin = std::max(begin, end);
    }
  }
  if (parts.back().rows.empty()) parts.pop_back();
  return parts;
}

}  // namespace lime
