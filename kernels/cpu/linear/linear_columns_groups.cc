// Sums of columns in the order of packed weights of bf16 models: pairs of columns add to the sum of
// their group, and a group that ends adds to the output.
#include <algorithm>
#include <cstring>

#include "kernels/cpu/linear/linear_columns_kernels.h"
#include "planner/base/check.h"
#include "planner/base/float_bits.h"

namespace lime::cpu {
namespace {

int64_t PaddedRowsOf(const StripWorkspace::Impl& ws) {
  return RoundUp(ws.options.max_rows, kMaxTileRows);
}

// Columns of a piece: element i of its first half and element i of its second half are a pair.
int32_t PieceColumns(const Matrix& m) {
  return m.bits <= 4 ? 8 : 4;
}

// Columns that have waited, and then those of one addition.
class GroupColumns {
 public:
  GroupColumns(const StripWorkspace::Impl& ws, std::span<const Strip> columns, const void* x, int64_t x_stride)
      : ws_(ws), columns_(columns), x_(static_cast<const BF16*>(x)), x_stride_(x_stride), waited_(ws.piece_columns) {}

  size_t size() const { return waited_ + columns_.size(); }
  int32_t index(size_t i) const { return i < waited_ ? ws_.piece_index[i] : columns_[i - waited_].index; }
  const void* data(size_t i) const {
    return i < waited_ ? ws_.piece + static_cast<int64_t>(i) * PaddedRowsOf(ws_) : columns_[i - waited_].data;
  }
  BF16 x(int64_t token, size_t i) const {
    if (i < waited_) return BF16{ws_.piece_x[token * kMostPieceColumns + static_cast<int64_t>(i)]};
    return x_[token * x_stride_ + static_cast<int64_t>(i - waited_)];
  }

 private:
  const StripWorkspace::Impl& ws_;
  const std::span<const Strip> columns_;
  const BF16* const x_;
  const int64_t x_stride_;
  const size_t waited_;
};

// Keeps columns from `begin` on, whose piece the next addition completes.
void HoldPiece(StripWorkspace::Impl& ws, const GroupColumns& columns, size_t begin) {
  const int64_t stride = PaddedRowsOf(ws);
  const size_t count = columns.size() - begin;
  LIME_CHECK_LT(count, kMostPieceColumns);
  for (size_t i = 0; i < count; ++i) {
    const void* const from = columns.data(begin + i);
    std::byte* const to = ws.piece + static_cast<int64_t>(i) * stride;
    if (from != to) std::memmove(to, from, static_cast<size_t>(ws.matrix->rows * ws.matrix->bits / 8));
  }
  for (int64_t token = 0; token < ws.tokens; ++token) {
    for (size_t i = 0; i < count; ++i) ws.piece_x[token * kMostPieceColumns + static_cast<int64_t>(i)] = columns.x(token, begin + i).bits;
  }
  for (size_t i = 0; i < count; ++i) ws.piece_index[i] = columns.index(begin + i);
  ws.piece_columns = count;
}

// Cuts columns [0, end) by groups. Returns their number.
size_t FindGroups(StripWorkspace::Impl& ws, const GroupColumns& columns, size_t end) {
  size_t count = 0;
  for (size_t i = 0; i < end; ++i) {
    const int64_t group = columns.index(i) / ws.matrix->group_size;
    if (count == 0 || ws.segments[count - 1].fold != group) ws.segments[count++] = {.fold = group, .begin = i, .end = i};
    ++ws.segments[count - 1].end;
  }
  return count;
}

struct TokenGroups {
  ColumnEntry* entries;
  int64_t* first;  // of each group; then their number
  float* sums;     // of x, by group
  BF16* x;         // of the group at work: of all its columns
};

TokenGroups GroupsOf(const StripWorkspace::Impl& ws, int64_t token) {
  return {.entries = ws.entries + token * (ws.options.max_columns + kMostPieceColumns),
          .first = ws.first + token * (MostColumnGroups(ws.options) + 1),
          .sums = ws.group_sums + token * MostColumnGroups(ws.options),
          .x = reinterpret_cast<BF16*>(ws.group_x) + token * kMostGroupColumns};
}

// Writes the pairs of a token and a group, in their order, and notes its x.
int64_t FillPairs(const StripWorkspace::Impl& ws, const GroupColumns& columns, const ColumnSegment& group, int64_t token, ColumnEntry* out,
                  BF16* group_x) {
  const int32_t piece_columns = PieceColumns(*ws.matrix), half = piece_columns / 2;
  int64_t count = 0;
  for (size_t i = group.begin; i < group.end;) {
    const int32_t piece = columns.index(i) / piece_columns;
    const void* column[kMostPieceColumns];
    uint16_t x[kMostPieceColumns] = {};
    std::fill_n(column, piece_columns, ws.zeros);
    for (; i < group.end && columns.index(i) / piece_columns == piece; ++i) {
      const int32_t at = columns.index(i) % piece_columns;
      column[at] = columns.data(i);
      x[at] = columns.x(token, i).bits;
      group_x[columns.index(i) % ws.matrix->group_size] = BF16{x[at]};
    }
    const auto is_zero = [](uint16_t bits) { return (bits & 0x7fff) == 0; };
    for (int32_t first = 0; first < half; ++first) {
      const int32_t second = first + half;
      if (is_zero(x[first]) && is_zero(x[second])) continue;
      out[count++] = {.column = column[first], .odd = column[second], .x = x[first] | uint32_t{x[second]} << 16, .lane = 0, .group = 0};
    }
  }
  return count;
}

// `open`: the last group goes on with the next addition.
void FillGroups(const StripWorkspace::Impl& ws, const GroupColumns& columns, size_t groups, bool open) {
  for (int64_t token = 0; token < ws.tokens; ++token) {
    const TokenGroups of = GroupsOf(ws, token);
    of.first[0] = 0;
    for (size_t g = 0; g < groups; ++g) {
      of.first[g + 1] = of.first[g] + FillPairs(ws, columns, ws.segments[g], token, of.entries + of.first[g], of.x);
      if (open && g + 1 == groups) continue;
      of.sums[g] = ws.groups->sum_group(of.x, ws.matrix->group_size);
      std::fill_n(of.x, kMostGroupColumns, BF16{});
    }
  }
}

// Scales, then biases of a group, with even rows before odd ones.
void ExpandGroup(const ColumnTile& tile, int64_t group) {
  const Matrix& m = *tile.matrix;
  const int64_t groups = m.Groups();
  const auto *scales = static_cast<const BF16*>(m.scales) + group, *biases = static_cast<const BF16*>(m.biases) + group;
  for (int64_t i = 0; i < tile.count; ++i) {
    const int64_t in_chunk = i % kChunk;
    const int64_t row = tile.begin + i - in_chunk + (in_chunk < kChunk / 2 ? 2 * in_chunk : 2 * in_chunk - kChunk + 1);
    tile.scales[i] = ToFloat(scales[row * groups]);
    tile.scales[tile.stride + i] = ToFloat(biases[row * groups]);
  }
}

}  // namespace

void AddGroupColumns(ThreadPool& pool, StripWorkspace::Impl& ws, std::span<const Strip> added, const void* x, int64_t x_stride,
                     int32_t next) {
  const GroupColumns columns(ws, added, x, x_stride);
  const int32_t piece_columns = PieceColumns(*ws.matrix);
  size_t end = columns.size();
  while (next >= 0 && end > 0 && columns.index(end - 1) / piece_columns == next / piece_columns) --end;
  const size_t groups = FindGroups(ws, columns, end);
  const bool open = next >= 0 && groups > 0 && ws.segments[groups - 1].fold == next / ws.matrix->group_size;
  FillGroups(ws, columns, groups, open);
  pool.ParallelFor(ColumnTiles(ws), [&](int64_t i, int thread) {
    for (size_t g = 0; g < groups; ++g) {
      const bool ends = !open || g + 1 < groups;
      if (ends) ExpandGroup(ColumnTileOf(ws, i, 0, thread), ws.segments[g].fold);
      for (int64_t token = 0; token < ws.tokens; ++token) {
        const TokenGroups of = GroupsOf(ws, token);
        const ColumnTile tile = ColumnTileOf(ws, i, token, thread);
        ws.groups->add_codes(tile, {of.entries + of.first[g], of.entries + of.first[g + 1]});
        if (ends) ws.groups->end_group(tile, of.sums[g]);
      }
    }
  });
  HoldPiece(ws, columns, end);
}

}  // namespace lime::cpu
