#include <algorithm>
#include <bit>

#include "kernels/cpu/base/hwy_targets.h"
#include "kernels/cpu/linear/linear_columns_kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/linear/linear_columns_add.cc"
#include <hwy/foreach_target.h>  // IWYU pragma: keep

#include "kernels/cpu/linear/linear_rows-inl.h"

HWY_BEFORE_NAMESPACE();
namespace lime::cpu::HWY_NAMESPACE {
namespace {

// Of 32 rows, in a whole tile: eight accumulators, or sixteen of four lanes.
constexpr int kTileChunks = kPlanes == 2 ? 4 : kPlanes < kChunk ? 2 : 1;
static_assert(kTileChunks * kChunk <= kMaxTileRows);
// Columns lie apart, so the hardware does not prefetch them.
constexpr int64_t kEntriesAhead = 6;

// A packed row reads q itself: fma(q, 1, 0).
constexpr float kAsCodes[kPreparedRows + 1] = {1.0f};

// Row `position` of 32 in the lanes' order.
int64_t RowOf(int64_t position, bool even_odd) {
  if (!even_odd) return position;
  return position < kChunk / 2 ? 2 * position : 2 * position - kChunk + 1;
}

template <class Row>
bool HasTail(const Matrix& m) {
  return Row::kPacked ? Row::HasTail(m) : m.rows % kChunk != 0;
}

// What a reader needs to read a column as a row of weights.
template <class Row>
Matrix AsRow(const Matrix& m) {
  Matrix row = m;
  row.rows = 1;
  row.cols = Row::kPacked ? kChunk : m.rows;
  row.group_size = kChunk;
  return row;
}

// kChunks times 32 rows, from row 32 * chunk of the tile. `tail`: they are the last ones, with
// NextTail.
template <class Row, int kChunks>
HWY_NOINLINE void AddRows(const ColumnTile& tile, std::span<const ColumnEntry> entries, int64_t chunk, [[maybe_unused]] bool tail) {
  Matrix column = AsRow<Row>(*tile.matrix);
  const int64_t first_byte = (tile.begin / kChunk + chunk) * Row::kChunkBytes;
  float* const lanes = tile.lanes + chunk * kChunk;
  const float* const scales = tile.scales + chunk * kChunk;
  const ColumnEntry *e = entries.data(), *const end = e + entries.size();
  while (e != end) {
    const int32_t lane = e->lane;
    float* const to = lanes + lane * tile.stride;
    LaneVec acc[kChunks][kPlanes];
    LIME_UNROLL for (int i = 0; i < kChunks * kPlanes; ++i) acc[i / kPlanes][i % kPlanes] = LoadVec(to + i * kVecLanes);
    for (; e != end && e->lane == lane; ++e) {
      const char* const ahead = static_cast<const char*>((e + std::min<int64_t>(kEntriesAhead, end - e - 1))->column) + first_byte;
      LIME_UNROLL for (int b = 0; b < kChunks * Row::kChunkBytes; b += 64) __builtin_prefetch(ahead + b);
      column.data = static_cast<const char*>(e->column) + first_byte;
      Row row(column, 0, 0, 0, kAsCodes);
      const auto group = row.GroupAt(0);
      const LaneVec x = hn::Set(LaneTag(), std::bit_cast<float>(e->x));
      LIME_UNROLL for (int c = 0; c < kChunks; ++c) {
        LaneVec w[kPlanes];
        if constexpr (kChunks == 1) {
          tail ? row.NextTail(group, w) : row.Next(group, w);
        } else {
          row.Next(group, w);
        }
        LIME_UNROLL for (int p = 0; p < kPlanes; ++p) {
          if constexpr (Row::kPacked) {
            const float* const scale = scales + 2 * e->group * tile.stride + c * kChunk + p * kVecLanes;
            w[p] = FusedMulAdd(w[p], LoadVec(scale), LoadVec(scale + tile.stride));
          }
          acc[c][p] = FusedMulAdd(w[p], x, acc[c][p]);
        }
      }
    }
    LIME_UNROLL for (int i = 0; i < kChunks * kPlanes; ++i) StoreVec(acc[i / kPlanes][i % kPlanes], to + i * kVecLanes);
  }
}

template <class Row>
void AddTile(const ColumnTile& tile, std::span<const ColumnEntry> entries) {
  const int64_t chunks = (tile.count + kChunk - 1) / kChunk;
  const bool tail = tile.begin + tile.count == tile.matrix->rows && HasTail<Row>(*tile.matrix);
  if (chunks == kTileChunks && !tail) return AddRows<Row, kTileChunks>(tile, entries, 0, false);
  for (int64_t chunk = 0; chunk < chunks; ++chunk) AddRows<Row, 1>(tile, entries, chunk, tail && chunk + 1 == chunks);
}

void AddEntriesImpl(const ColumnTile& tile, std::span<const ColumnEntry> entries) {
  const Matrix& m = *tile.matrix;
  if (!m.IsPacked()) {
    WithWorkingType(m.dtype, [&](auto type) HWY_ATTR { AddTile<DenseRow<decltype(type)>>(tile, entries); });
    return;
  }
  switch (m.bits) {
    case 3:
      return AddTile<PackedRow<3, 1>>(tile, entries);
    case 4:
      return AddTile<PackedRow<4, 1>>(tile, entries);
    case 6:
      return AddTile<PackedRow<6, 1>>(tile, entries);
    default:
      return AddTile<PackedRow<8, 1>>(tile, entries);
  }
}

void ExpandScalesImpl(const ColumnTile& tile, int64_t group, float* out) {
  const Matrix& m = *tile.matrix;
  const int64_t groups = m.Groups();
  const bool even_odd = ColumnsAreEvenOdd(m);
  WithWorkingType(m.scale_dtype, [&](auto type) HWY_ATTR {
    using T = decltype(type);
    const T *scales = static_cast<const T*>(m.scales) + group, *biases = static_cast<const T*>(m.biases) + group;
    for (int64_t i = 0; i < tile.count; ++i) {
      const int64_t row = tile.begin + i / kChunk * kChunk + RowOf(i % kChunk, even_odd);
      out[i] = ToFloat(scales[row * groups]);
      out[tile.stride + i] = ToFloat(biases[row * groups]);
    }
  });
}

void SumLanesImpl(const ColumnTile& tile, bool even_odd, float* y) {
  for (int64_t chunk = 0; chunk * kChunk < tile.count; ++chunk) {
    float sums[kChunk];
    for (int plane = 0; plane < kPlanes; ++plane) {
      float* const from = tile.lanes + chunk * kChunk + plane * kVecLanes;
      LaneVec half[kChunk / 2];
      for (int i = 0; i < kChunk / 2; ++i)
        half[i] = hn::Add(LoadVec(from + i * tile.stride), LoadVec(from + (i + kChunk / 2) * tile.stride));
      for (int apart = kChunk / 4; apart > 0; apart /= 2) {
        for (int i = 0; i < apart; ++i) half[i] = hn::Add(half[i], half[i + apart]);
      }
      StoreVec(half[0], sums + plane * kVecLanes);
      for (int i = 0; i < kChunk; ++i) StoreVec(hn::Zero(LaneTag()), from + i * tile.stride);
    }
    for (int64_t i = 0; i < kChunk; ++i) {
      const int64_t row = chunk * kChunk + RowOf(i, even_odd);
      if (row < tile.count) y[row] += sums[i];
    }
  }
}

int64_t TileRowsImpl() {
  return kTileChunks * kChunk;
}

}  // namespace
}  // namespace lime::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lime::cpu {

HWY_EXPORT(AddEntriesImpl);
HWY_EXPORT(ExpandScalesImpl);
HWY_EXPORT(SumLanesImpl);
HWY_EXPORT(TileRowsImpl);

void AddColumnEntries(const ColumnTile& tile, std::span<const ColumnEntry> entries) {
  HWY_DYNAMIC_DISPATCH(AddEntriesImpl)(tile, entries);
}

void ExpandColumnScales(const ColumnTile& tile, int64_t group, float* out) {
  HWY_DYNAMIC_DISPATCH(ExpandScalesImpl)(tile, group, out);
}

void SumColumnLanes(const ColumnTile& tile, bool even_odd, float* y) {
  HWY_DYNAMIC_DISPATCH(SumLanesImpl)(tile, even_odd, y);
}

int64_t ColumnTileRows() {
  return HWY_DYNAMIC_DISPATCH(TileRowsImpl)();
}

}  // namespace lime::cpu
#endif  // HWY_ONCE
