#include "kernels/cpu/linear/linear_columns.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstdlib>
#include <cstring>
#include <type_traits>

#include "absl/strings/str_cat.h"
#include "kernels/cpu/linear/linear_columns_kernels.h"
#include "planner/base/check.h"
#include "planner/base/float_bits.h"

namespace lime::cpu {
namespace {

constexpr int64_t kFold = kSumChunks * kChunk;
constexpr int64_t kScaleFloats = kFold / kLeastGroupColumns * 2 * kMaxTileRows;  // of a thread

int64_t PaddedRows(int64_t rows) {
  return RoundUp(rows, kMaxTileRows);
}

// Calls fn(pointer, count) for each array of a workspace.
template <typename Fn>
void ForEachArray(const StripWorkspace::Options& o, StripWorkspace::Impl& ws, Fn&& fn) {
  const int64_t rows = PaddedRows(o.max_rows);
  fn(ws.gather, o.num_threads * ws.gather_bytes);
  fn(ws.lanes, o.max_tokens * kChunk * rows);
  fn(ws.y, o.max_tokens * rows);
  fn(ws.scales, o.num_threads * kScaleFloats);
  fn(ws.entries, o.max_tokens * (o.max_columns + kMostPieceColumns));  // some may have waited
  fn(ws.first, o.max_tokens * (MostColumnGroups(o) + 1));
  fn(ws.segments, MostColumnGroups(o));
  fn(ws.zeros, rows * static_cast<Bytes>(sizeof(BF16)));
  fn(ws.held, rows * static_cast<Bytes>(sizeof(BF16)));
  fn(ws.held_x, o.max_tokens);
  fn(ws.piece, kMostPieceColumns * rows);
  fn(ws.piece_x, o.max_tokens * kMostPieceColumns);
  fn(ws.group_x, o.max_tokens * kMostGroupColumns);
  fn(ws.group_sums, o.max_tokens * MostColumnGroups(o));
}

template <typename T>
Bytes BytesOf(int64_t count) {
  return RoundUp(count * static_cast<Bytes>(sizeof(T)), 64);
}

// Rows of fp32, and the scales of packed ones, which have fewer bytes.
Bytes GatherBytes(const StripWorkspace::Options& options) {
  return RoundUp(kPreparedRows * options.max_row_cols * static_cast<Bytes>(sizeof(float)) + 64, 64);
}

}  // namespace

Bytes StripWorkspace::BytesFor(const Options& options) {
  Impl none;
  none.gather_bytes = GatherBytes(options);
  Bytes bytes = 0;
  ForEachArray(options, none, [&]<typename T>(T*, int64_t count) { bytes += BytesOf<T>(count); });
  return bytes;
}

Bytes StripWorkspace::bytes() const {
  return impl_->bytes;
}

StripWorkspace::StripWorkspace(const Options& options) : impl_(std::make_unique<Impl>()) {
  impl_->options = options;
  impl_->gather_bytes = GatherBytes(options);
  impl_->bytes = BytesFor(options);
  impl_->memory = static_cast<std::byte*>(std::aligned_alloc(64, static_cast<size_t>(impl_->bytes)));
  LIME_CHECK(impl_->memory != nullptr) << "scratch memory of sparse MLPs, " << impl_->bytes << " bytes";
  std::memset(impl_->memory, 0, static_cast<size_t>(impl_->bytes));
  std::byte* next = impl_->memory;
  ForEachArray(options, *impl_, [&]<typename T>(T*& array, int64_t count) {
    array = reinterpret_cast<T*>(next);
    next += BytesOf<T>(count);
  });
}

StripWorkspace::~StripWorkspace() {
  std::free(impl_->memory);
}

absl::Status CheckColumns(const Matrix& matrix) {
  if (!matrix.IsPacked()) return absl::OkStatus();
  if (matrix.dtype != DType::kU32) return absl::UnimplementedError("there is no kernel for single columns of mxfp4 or FP8");
  if (matrix.rows % kChunk != 0)
    return absl::UnimplementedError(absl::StrCat("single columns of ", matrix.rows, " packed weights: need a multiple of ", kChunk));
  return absl::OkStatus();
}

void BeginColumns(StripWorkspace& workspace, const Matrix& matrix, DType x_dtype, int64_t tokens) {
  StripWorkspace::Impl& ws = workspace.impl();
  LIME_CHECK_LE(tokens, ws.options.max_tokens);
  LIME_CHECK_LE(matrix.rows, ws.options.max_rows);
  LIME_CHECK_LE(matrix.cols, ws.options.max_columns);
  const bool pairs = x_dtype == DType::kBF16 && matrix.dtype == DType::kBF16;
  const bool groups = x_dtype == DType::kBF16 && matrix.IsPacked() && matrix.scale_dtype == DType::kBF16;
  ws.matrix = &matrix, ws.x_dtype = x_dtype, ws.tokens = tokens;
  ws.bf16 = pairs ? ChooseBf16(ws.options.numerics) : nullptr;
  ws.groups = groups ? ChoosePackedBf16(ws.options.numerics) : nullptr;
  ws.tile_rows = ws.bf16 != nullptr || ws.groups != nullptr ? kMaxTileRows : ColumnTileRows();
  ws.fold = 0, ws.held_index = -1, ws.piece_columns = 0;
  std::fill_n(ws.group_x, tokens * kMostGroupColumns, uint16_t{0});
  const int64_t rows = PaddedRows(ws.options.max_rows);
  std::fill_n(ws.lanes, tokens * kChunk * rows, 0.0f);
  std::fill_n(ws.y, tokens * rows, 0.0f);
}

namespace {

// The columns of one addition. The first one may have waited since the last.
class Columns {
 public:
  Columns(const StripWorkspace::Impl& ws, std::span<const Strip> columns, const void* x, int64_t x_stride)
      : ws_(ws), columns_(columns), x_(x), x_stride_(x_stride), held_(ws.held_index >= 0 ? 1 : 0) {}

  size_t size() const { return held_ + columns_.size(); }
  int32_t index(size_t i) const { return i < held_ ? ws_.held_index : columns_[i - held_].index; }
  const void* data(size_t i) const { return i < held_ ? ws_.held : columns_[i - held_].data; }

  template <typename T>
  T x(int64_t token, size_t i) const {
    if constexpr (std::is_same_v<T, BF16>) {
      if (i < held_) return BF16{ws_.held_x[token]};
    }
    return static_cast<const T*>(x_)[token * x_stride_ + static_cast<int64_t>(i - held_)];
  }

 private:
  const StripWorkspace::Impl& ws_;
  std::span<const Strip> columns_;
  const void* x_;
  int64_t x_stride_;
  size_t held_;
};

bool IsZero(float x) {
  return x == 0;  // NaN is not
}

// Calls fn(entry) for the products of a token, in ascending order of columns.
template <typename T, typename Fn>
void ForEachProduct(const StripWorkspace::Impl& ws, const Columns& columns, const ColumnSegment& segment, int64_t token, Fn&& fn) {
  const int64_t group_size = ws.matrix->IsPacked() ? ws.matrix->group_size : kFold;
  for (size_t i = segment.begin; i < segment.end; ++i) {
    const float x = ToFloat(columns.x<T>(token, i));
    const int64_t k = columns.index(i), in_fold = k % kFold;
    if (IsZero(x)) continue;
    fn(ColumnEntry{.column = columns.data(i),
                   .odd = nullptr,
                   .x = std::bit_cast<uint32_t>(x),
                   .lane = static_cast<int32_t>(k % kChunk),
                   .group = static_cast<int32_t>(in_fold / group_size)});
  }
}

// The same for pairs of columns 2i and 2i + 1. One that is missing is zero.
template <typename Fn>
void ForEachPair(const StripWorkspace::Impl& ws, const Columns& columns, const ColumnSegment& segment, int64_t token, Fn&& fn) {
  for (size_t i = segment.begin; i < segment.end;) {
    const int32_t k = columns.index(i);
    ColumnEntry entry{.column = ws.zeros, .odd = ws.zeros, .x = 0, .lane = k % 64 / 2, .group = 0};
    bool is_zero = true;
    for (; i < segment.end && columns.index(i) / 2 == k / 2; ++i) {
      const BF16 x = columns.x<BF16>(token, i);
      if (IsZero(ToFloat(x))) continue;
      is_zero = false;
      const bool is_odd = columns.index(i) % 2 == 1;
      (is_odd ? entry.odd : entry.column) = columns.data(i);
      entry.x |= uint32_t{x.bits} << (is_odd ? 16 : 0);
    }
    if (!is_zero) fn(entry);
  }
}

// Writes the products of a token and a segment by lane; within a lane they ascend. `for_each` calls
// its argument with each of them.
template <typename ForEach>
int64_t SortByLane(ColumnEntry* out, ForEach&& for_each) {
  std::array<int64_t, kChunk + 1> at{};
  for_each([&](const ColumnEntry& entry) { ++at[static_cast<size_t>(entry.lane) + 1]; });
  for (size_t lane = 0; lane < kChunk; ++lane) at[lane + 1] += at[lane];
  for_each([&](const ColumnEntry& entry) { out[at[static_cast<size_t>(entry.lane)]++] = entry; });
  return at[kChunk];
}

// Cuts the columns by 2,048, so that the part of a tile stays in a private cache for all tokens. Returns
// the number of segments.
size_t FindSegments(StripWorkspace::Impl& ws, const Columns& columns) {
  size_t count = 0;
  int64_t last = -1;
  for (size_t i = 0; i < columns.size(); ++i) {
    const int64_t fold = columns.index(i) / kFold;
    if (fold != last) ws.segments[count++] = {.fold = ws.bf16 != nullptr ? 0 : fold, .begin = i, .end = i};
    ++ws.segments[count - 1].end;
    last = fold;
  }
  return count;
}

// The products of one token with the columns.
struct TokenEntries {
  ColumnEntry* entries;
  int64_t* first;  // of each segment; then their number
};

TokenEntries EntriesOf(const StripWorkspace::Impl& ws, int64_t token) {
  return {.entries = ws.entries + token * (ws.options.max_columns + kMostPieceColumns),
          .first = ws.first + token * (MostColumnGroups(ws.options) + 1)};
}

void FillEntries(const StripWorkspace::Impl& ws, const Columns& columns, size_t segments) {
  for (int64_t token = 0; token < ws.tokens; ++token) {
    const auto [entries, first] = EntriesOf(ws, token);
    first[0] = 0;
    for (size_t s = 0; s < segments; ++s) {
      ColumnEntry* const out = entries + first[s];
      int64_t count = 0;
      if (ws.bf16 != nullptr) {
        count = SortByLane(out, [&](auto&& fn) { ForEachPair(ws, columns, ws.segments[s], token, fn); });
      } else {
        WithWorkingType(ws.x_dtype, [&](auto type) {
          count = SortByLane(out, [&](auto&& fn) { ForEachProduct<decltype(type)>(ws, columns, ws.segments[s], token, fn); });
        });
      }
      first[s + 1] = first[s] + count;
    }
  }
}

// Ends a fold.
void SumTile(const StripWorkspace::Impl& ws, const ColumnTile& tile, int64_t token) {
  const bool even_odd = ws.bf16 != nullptr || ws.groups != nullptr || ColumnsAreEvenOdd(*ws.matrix);
  SumColumnLanes(tile, even_odd, ws.y + token * PaddedRows(ws.options.max_rows) + tile.begin);
}

void ExpandScales(const Columns& columns, const ColumnSegment& segment, const ColumnTile& tile) {
  const int64_t group_size = tile.matrix->group_size;
  int64_t last = -1;
  for (size_t i = segment.begin; i < segment.end; ++i) {
    const int64_t group = columns.index(i) / group_size;
    if (group == last) continue;
    ExpandColumnScales(tile, group, tile.scales + columns.index(i) % kFold / group_size * 2 * tile.stride);
    last = group;
  }
}

// Keeps the last column back, whose odd neighbour is added before it.
void HoldLast(StripWorkspace::Impl& ws, std::span<const Strip> columns, const void* x, int64_t x_stride) {
  std::memcpy(ws.held, columns.back().data, static_cast<size_t>(ws.matrix->rows) * sizeof(BF16));
  for (int64_t token = 0; token < ws.tokens; ++token)
    ws.held_x[token] = static_cast<const BF16*>(x)[token * x_stride + std::ssize(columns) - 1].bits;
  ws.held_index = columns.back().index;
}

void AddAll(ThreadPool& pool, StripWorkspace::Impl& ws, const Columns& columns) {
  const size_t segments = FindSegments(ws, columns);
  FillEntries(ws, columns, segments);
  pool.ParallelFor(ColumnTiles(ws), [&](int64_t i, int thread) {
    int64_t fold = ws.fold;
    for (size_t s = 0; s < segments; ++s) {
      if (ws.segments[s].fold != fold) {
        for (int64_t token = 0; token < ws.tokens; ++token) SumTile(ws, ColumnTileOf(ws, i, token, thread), token);
        fold = ws.segments[s].fold;
      }
      if (ws.matrix->IsPacked()) ExpandScales(columns, ws.segments[s], ColumnTileOf(ws, i, 0, thread));
      for (int64_t token = 0; token < ws.tokens; ++token) {
        const auto [entries, first] = EntriesOf(ws, token);
        const std::span<const ColumnEntry> of_segment(entries + first[s], entries + first[s + 1]);
        const ColumnTile tile = ColumnTileOf(ws, i, token, thread);
        ws.bf16 != nullptr ? ws.bf16->add_columns(tile, of_segment) : AddColumnEntries(tile, of_segment);
      }
    }
  });
  if (segments > 0) ws.fold = ws.segments[segments - 1].fold;
}

}  // namespace

int64_t ColumnTiles(const StripWorkspace::Impl& ws) {
  return (ws.matrix->rows + ws.tile_rows - 1) / ws.tile_rows;
}

ColumnTile ColumnTileOf(const StripWorkspace::Impl& ws, int64_t tile, int64_t token, int thread) {
  const int64_t begin = tile * ws.tile_rows;
  return {.matrix = ws.matrix,
          .begin = begin,
          .count = std::min(ws.tile_rows, ws.matrix->rows - begin),
          .stride = ws.tile_rows,
          .lanes = ws.lanes + (token * PaddedRows(ws.options.max_rows) + begin) * kChunk,
          .scales = ws.scales + thread * kScaleFloats};
}

void AddColumns(ThreadPool& pool, StripWorkspace& workspace, std::span<const Strip> columns, const void* x, int64_t x_stride,
                int32_t next) {
  StripWorkspace::Impl& ws = workspace.impl();
  LIME_CHECK_LE(std::ssize(columns), ws.options.max_columns);
  LIME_CHECK_LE(pool.num_threads(), ws.options.num_threads);
  if (columns.empty()) return;
  if (ws.groups != nullptr) return AddGroupColumns(pool, ws, columns, x, x_stride, next);
  const int32_t last = columns.back().index;
  const bool waits = ws.bf16 != nullptr && last % 2 == 0 && next == last + 1;
  const std::span<const Strip> now = columns.first(columns.size() - (waits ? 1 : 0));
  if (!now.empty()) {  // brings the neighbour of a column that has waited
    AddAll(pool, ws, Columns(ws, now, x, x_stride));
    ws.held_index = -1;
  }
  if (waits) HoldLast(ws, columns, x, x_stride);
}

void FinishColumns(ThreadPool& pool, StripWorkspace& workspace, const LinearTask& task) {
  StripWorkspace::Impl& ws = workspace.impl();
  LIME_CHECK(ws.held_index < 0 && ws.piece_columns == 0);
  pool.ParallelFor(ColumnTiles(ws), [&](int64_t i, int thread) {
    for (int64_t token = 0; token < ws.tokens; ++token) {
      const ColumnTile tile = ColumnTileOf(ws, i, token, thread);
      SumTile(ws, tile, token);
      FinishRows(task, ws.x_dtype, token, tile.begin, tile.count, ws.y + token * PaddedRows(ws.options.max_rows) + tile.begin);
    }
  });
}

}  // namespace lime::cpu
