// The parts of linear_columns.h that are compiled for each instruction set.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/cpu/linear/linear_bf16.h"
#include "kernels/cpu/linear/linear_columns.h"
#include "kernels/cpu/linear/linear_kernels.h"

namespace lime::cpu {

// A product x * column, or those of two of neighbours if the step takes pairs.
struct ColumnEntry {
  const void* column;  // of a pair: the even one
  const void* odd;     // of a pair
  uint32_t x;          // an fp32; or of a pair two bf16, the even one in the low half
  int32_t lane;
  int32_t group;  // packed: of the column, counted from the first one of the tile's scales
};

// Rows of a tile on every instruction set, at most.
inline constexpr int64_t kMaxTileRows = 128;
inline constexpr int64_t kLeastGroupColumns = 32, kMostGroupColumns = 128;  // of packed weights
inline constexpr int64_t kMostPieceColumns = 8;                             // of a piece of a group

// Rows [begin, begin + count) of W. `begin` is a multiple of 32.
//
// Lanes are [32][stride]. Each vector has one lane of different rows, and 32 rows lie in the lane
// order of the weights' format (kNatural, or even rows before odd ones). In the order of packed weights
// of bf16 models, lane 0 is the sum of the group at work, and lane 1 the output so far.
struct ColumnTile {
  const Matrix* matrix = nullptr;
  int64_t begin = 0, count = 0;
  int64_t stride = 0;  // rows of a whole tile
  float* lanes = nullptr;
  float* scales = nullptr;  // packed: [group][scales, biases][stride], in the order of the lanes
};

// Adds products to their lanes. Entries of a lane follow each other in the order of the sum.
void AddColumnEntries(const ColumnTile& tile, std::span<const ColumnEntry> entries);
// Writes scales and biases of the group `group` of columns to `out`.
void ExpandColumnScales(const ColumnTile& tile, int64_t group, float* out);
// Adds the tree of the lanes to y[0, count), and sets the lanes to zero.
void SumColumnLanes(const ColumnTile& tile, bool even_odd, float* y);
// Rows of a whole tile of AddColumnEntries.
int64_t ColumnTileRows();

// Whether 32 rows lie with even ones before odd ones.
inline bool ColumnsAreEvenOdd(const Matrix& m) {
  return m.dtype == DType::kBF16 || (m.IsPacked() && m.bits == 4);
}

// Columns that share lanes until these are added up.
struct ColumnSegment {
  int64_t fold;  // of 2,048 columns; or a group of packed weights
  size_t begin, end;
};

struct StripWorkspace::Impl {
  Options options;
  Bytes bytes = 0;
  std::byte* memory = nullptr;
  // Gathered rows, scales and biases: gather_bytes for each thread.
  std::byte* gather = nullptr;
  Bytes gather_bytes = 0;
  float* lanes = nullptr;          // [tokens][rows / tile_rows][32][tile_rows]
  float* y = nullptr;              // [tokens][rows]: sums of whole folds
  float* scales = nullptr;         // [threads][groups of a fold][scales, biases][kMaxTileRows]
  ColumnEntry* entries = nullptr;  // [tokens][columns]
  int64_t* first = nullptr;        // [tokens][segments + 1]
  ColumnSegment* segments = nullptr;
  std::byte* zeros = nullptr;  // a column of bf16
  std::byte* held = nullptr;   // the same: a column that waits for its neighbour
  uint16_t* held_x = nullptr;  // [tokens]
  // By groups of packed weights: columns of a piece that wait for the others; x of all columns of the
  // group at work; and sums of x over groups that end.
  std::byte* piece = nullptr;   // [kMostPieceColumns][padded rows], a byte for a code at most
  uint16_t* piece_x = nullptr;  // [tokens][kMostPieceColumns]
  uint16_t* group_x = nullptr;  // [tokens][kMostGroupColumns]; zeros if no group is at work
  float* group_sums = nullptr;  // [tokens][MostColumnGroups]

  // The sum at work.
  const Matrix* matrix = nullptr;
  DType x_dtype = DType::kBF16;
  int64_t tokens = 0;
  const Bf16Kernels* bf16 = nullptr;    // pairs of dense columns; null: another order
  const Bf16Kernels* groups = nullptr;  // by groups of packed weights; null: another order
  int64_t tile_rows = 0;
  int64_t fold = 0;         // whose lanes these are
  int32_t held_index = -1;  // -1: no column waits
  int32_t piece_index[kMostPieceColumns] = {};
  size_t piece_columns = 0;  // that wait
};

// Groups of columns of packed weights that one addition has, at most.
inline int64_t MostColumnGroups(const StripWorkspace::Options& options) {
  return options.max_columns / kLeastGroupColumns + 2;
}
// Tiles of the sum at work, and one of them.
int64_t ColumnTiles(const StripWorkspace::Impl& ws);
ColumnTile ColumnTileOf(const StripWorkspace::Impl& ws, int64_t tile, int64_t token, int thread);
// AddColumns by groups of packed weights (linear_columns_groups.cc).
void AddGroupColumns(ThreadPool& pool, StripWorkspace::Impl& ws, std::span<const Strip> columns, const void* x, int64_t x_stride,
                     int32_t next);

}  // namespace lime::cpu
