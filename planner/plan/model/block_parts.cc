#include "planner/plan/model/block_parts.h"

#include <algorithm>
#include <iterator>
#include <span>

namespace lime {
namespace {

constexpr int64_t kRowGroup = 64;  // cuts are multiples of it: whole tiles of the kernels

// One matrix with all tensors of its packing.
struct WholeMatrix {
  TensorRole role;
  int32_t expert = -1;
  int64_t rows = 0;
  Bytes bytes = 0;

  Bytes RowBytes() const { return bytes / rows; }
};

std::vector<WholeMatrix> Matrices(const BlockSpec& block) {
  std::vector<WholeMatrix> matrices;
  for (const TensorSpec& tensor : block.tensors) {
    if (IsPinned(tensor)) continue;
    const bool goes_on = !matrices.empty() && matrices.back().role == tensor.role && matrices.back().expert == tensor.expert;
    if (!goes_on) matrices.push_back({tensor.role, tensor.expert, tensor.info.shape[0], 0});
    matrices.back().bytes += tensor.info.bytes;
  }
  return matrices;
}

Bytes TotalOf(std::span<const WholeMatrix> matrices) {
  Bytes total = 0;
  for (const WholeMatrix& matrix : matrices) total += matrix.bytes;
  return total;
}

// Cuts matrices into parts of about equal size, and adds the parts.
void Cut(std::span<const WholeMatrix> matrices, Bytes max_bytes, std::vector<BlockPart>& all) {
  const Bytes total = TotalOf(matrices);
  Bytes group = 0;
  for (const WholeMatrix& matrix : matrices) group = std::max(group, matrix.RowBytes() * kRowGroup);
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
        parts.back().rows.push_back({matrix.role, begin, end, matrix.expert});
        parts.back().bytes += (end - begin) * row_bytes;
        done += (end - begin) * row_bytes;
      }
      if (end <= begin || end < begin + std::min(wanted, matrix.rows - begin) || done >= total * number / count) parts.emplace_back();
      begin = std::max(begin, end);
    }
  }
  if (parts.back().rows.empty()) parts.pop_back();
  std::ranges::move(parts, std::back_inserter(all));
}

// All matrices of one expert, which are read and computed together.
using Expert = std::span<const WholeMatrix>;

std::vector<Expert> ExpertsOf(std::span<const WholeMatrix> matrices) {
  std::vector<Expert> experts;
  for (size_t begin = 0, end = 0; begin < matrices.size(); begin = end) {
    while (end < matrices.size() && matrices[end].expert == matrices[begin].expert) ++end;
    experts.push_back(matrices.subspan(begin, end - begin));
  }
  return experts;
}

// Adds parts of whole experts, about equally many in each. An expert that is larger than a part is
// cut like a block, into parts of its own.
void CutExperts(const std::vector<Expert>& experts, Bytes max_bytes, std::vector<BlockPart>& parts) {
  Bytes largest = 1;
  for (const Expert& expert : experts) largest = std::max(largest, TotalOf(expert));
  const size_t most = static_cast<size_t>(std::max<Bytes>(1, max_bytes / largest));
  const size_t count = (experts.size() + most - 1) / most;
  for (size_t i = 0; i < count; ++i) {
    const size_t begin = experts.size() * i / count, end = experts.size() * (i + 1) / count;
    if (TotalOf(experts[begin]) > max_bytes) {
      Cut(experts[begin], max_bytes, parts);
      continue;
    }
    BlockPart& part = parts.emplace_back();
    for (size_t e = begin; e < end; ++e) {
      for (const WholeMatrix& matrix : experts[e]) part.rows.push_back({matrix.role, 0, matrix.rows, matrix.expert});
      part.bytes += TotalOf(experts[e]);
    }
  }
}

}  // namespace

bool IsPinned(const TensorSpec& tensor) {
  return tensor.info.shape.size() != 2 || tensor.role == TensorRole::kPositionEmbedding || tensor.part == TensorPart::kPinnedScales ||
         tensor.role == TensorRole::kKvUp || tensor.role == TensorRole::kLayerEmbedding || tensor.role == TensorRole::kLayerProjection;
}

Bytes PinnedBytes(const BlockSpec& block) {
  Bytes bytes = 0;
  for (const TensorSpec& tensor : block.tensors) bytes += IsPinned(tensor) ? tensor.info.bytes : 0;
  return bytes;
}

std::vector<BlockPart> CutBlock(const BlockSpec& block, Bytes max_bytes) {
  const std::vector<WholeMatrix> matrices = Matrices(block);
  const auto first_expert = std::ranges::find_if(matrices, [](const WholeMatrix& matrix) { return matrix.expert >= 0; });
  std::vector<BlockPart> parts;
  Cut({matrices.begin(), first_expert}, max_bytes, parts);
  CutExperts(ExpertsOf({first_expert, matrices.end()}), max_bytes, parts);
  return parts;
}

}  // namespace lime
