#include "kernels/cpu/attention.h"

#include <vector>

#include "kernels/cpu/attention_tile.h"
#include "kernels/cpu/base/hwy_targets.h"
#include "planner/base/check.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/attention.cc"
#include <hwy/foreach_target.h>  // IWYU pragma: keep

#include "kernels/cpu/attention_kernels-inl.h"
#include "kernels/cpu/base/lanes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace lime::cpu::HWY_NAMESPACE {
namespace {

// Packs the tile's queries so that all rows' values of one dimension are side by side.
void PackQueries(const AttentionCall& call, const AttentionTile& tile, int64_t kv_head, float* packed) {
  const int64_t head_dim = call.kv.head_dim;
  for (int r = 0; r < tile.rows; ++r) {
    const float* q = call.q + call.Token(tile, r) * call.shape.q_stride + call.Head(tile, kv_head, r) * head_dim;
    for (int64_t d = 0; d < head_dim; ++d) packed[d * kTileRows + r] = q[d];
  }
}

// Finds the positions of the piece that each row sees, and the memory of their K and V.
void LocatePiece(const AttentionCall& call, const AttentionTile& tile, int64_t kv_head, int64_t piece, TilePiece& t) {
  const int64_t origin = piece * kPiecePositions;
  int first = kPiecePositions, last = 0;
  for (int r = 0; r < tile.rows; ++r) {
    const int64_t token = call.Token(tile, r);
    t.begin[r] = static_cast<int>(std::clamp<int64_t>(call.Begin(token) - origin, 0, kPiecePositions));
    t.end[r] = static_cast<int>(std::clamp<int64_t>(call.End(token) - origin, 0, kPiecePositions));
    if (t.begin[r] >= t.end[r]) continue;
    first = std::min(first, t.begin[r]);
    last = std::max(last, t.end[r]);
  }
  const KvView& kv = call.kv;
  const int64_t slot = call.Slot(tile.token);
  const AttentionPieces& in = call.pieces;
  const std::byte* const place = in.places == nullptr ? nullptr : in.places[slot * (in.end - in.begin) + piece - in.begin];
  const int32_t* const pages = place != nullptr ? nullptr : kv.page_table + slot * kv.table_stride + piece * kPiecePages;
  const int64_t head_bytes = kPagePositions * kv.head_dim * ElementBytes(kv.dtype);
  for (int page = first / kPagePositions; page * kPagePositions < last; ++page) {
    t.k[page] = (place != nullptr ? place + page * kv.page_bytes : kv.base + pages[page] * kv.page_bytes) + kv_head * head_bytes;
    t.v[page] = kv.latent_dim > 0 ? t.k[page] : t.k[page] + kv.kv_heads * head_bytes;
  }
}

// Computes the tile's records [rows][RecordFloats] for one piece.
void PieceRecords(const AttentionCall& call, const AttentionTile& tile, int64_t kv_head, int64_t piece, const float* packed_q,
                  float* records) {
  alignas(64) float weights[kTileRows * kPiecePositions];
  TilePiece t;
  t.call = &call;
  t.rows = tile.rows;
  t.q = packed_q;
  t.weights = weights;
  t.records = records;
  LocatePiece(call, tile, kv_head, piece, t);
  WithWorkingType(call.kv.dtype, [&](auto type) HWY_ATTR { ComputePiece<decltype(type)>(t); });
}

// Merges a piece's records into the tile's records. Each row begins with its first piece; pieces
// ascend.
void MergePiece(const AttentionCall& call, const AttentionTile& tile, int64_t piece, const float* piece_records, float* records) {
  const int64_t floats = call.RecordFloats();
  for (int r = 0; r < tile.rows; ++r) {
    const int64_t token = call.Token(tile, r);
    const int64_t first = call.FirstPiece(token), last = call.LastPiece(token);
    const float* from = piece_records + r * floats;
    if (piece == first) std::copy(from, from + floats, records + r * floats);
    if (piece > first && piece <= last) MergeRecord(from, records + r * floats, call.AccWidth());
  }
}

// Loads the carried state of rows whose first piece is before the call's first piece.
void ContinueFromCarried(const AttentionCall& call, const AttentionTile& tile, int64_t kv_head, float* records) {
  for (int r = 0; r < tile.rows; ++r) {
    const int64_t token = call.Token(tile, r), floats = call.RecordFloats();
    if (call.FirstPiece(token) >= call.PieceBegin(token) || call.LastPiece(token) < call.PieceBegin(token)) continue;
    const float* from = call.Carried(token, call.Head(tile, kv_head, r));
    std::copy(from, from + floats, records + r * floats);
  }
}

// Writes the results of rows whose last piece is done. Carries the state of other rows to the next
// call.
void WriteRows(const AttentionCall& call, const AttentionTile& tile, int64_t kv_head, const float* records) {
  WithWorkingType(call.kv.dtype, [&](auto type) HWY_ATTR {
    using T = decltype(type);
    for (int r = 0; r < tile.rows; ++r) {
      const int64_t token = call.Token(tile, r), head = call.Head(tile, kv_head, r);
      const float* record = records + r * call.RecordFloats();
      if (call.FirstPiece(token) >= call.pieces.end || call.LastPiece(token) < call.PieceBegin(token)) continue;
      if (call.LastPiece(token) >= call.pieces.end) {
        std::copy(record, record + call.RecordFloats(), call.Carried(token, head));
      } else {
        FinishRecord(record, SumWithSink(record, call.Sink(head)), call.Gate(token, head), call.ValueDim(),
                     static_cast<T*>(call.out) + token * call.shape.out_stride + head * call.ValueDim());
      }
    }
  });
}

inline constexpr int64_t kMaxRecord = kRecordAcc + kMaxHeadDim;

// Attends one tile to all its pieces in this call.
void AttendTile(const AttentionCall& call, const AttentionTile& tile, int64_t kv_head) {
  alignas(64) float q[kMaxHeadDim * kTileRows];
  alignas(64) float records[kTileRows * kMaxRecord];
  alignas(64) float piece_records[kTileRows * kMaxRecord];
  PackQueries(call, tile, kv_head, q);
  ContinueFromCarried(call, tile, kv_head, records);
  for (int64_t piece = tile.piece_begin; piece < tile.piece_end; ++piece) {
    PieceRecords(call, tile, kv_head, piece, q, piece_records);
    MergePiece(call, tile, piece, piece_records, records);
  }
  WriteRows(call, tile, kv_head, records);
}

// Attends one tile to one piece; `records` are those of this piece.
void AttendPiece(const AttentionCall& call, const AttentionTile& tile, int64_t kv_head, int64_t piece, float* records) {
  alignas(64) float q[kMaxHeadDim * kTileRows];
  PackQueries(call, tile, kv_head, q);
  PieceRecords(call, tile, kv_head, piece, q, records);
}

// Merges the results of AttendPiece for all pieces: [pieces][rows][RecordFloats].
void MergeTile(const AttentionCall& call, const AttentionTile& tile, int64_t kv_head, const float* piece_records) {
  alignas(64) float records[kTileRows * kMaxRecord];
  ContinueFromCarried(call, tile, kv_head, records);
  for (int64_t piece = tile.piece_begin; piece < tile.piece_end; ++piece, piece_records += tile.rows * call.RecordFloats())
    MergePiece(call, tile, piece, piece_records, records);
  WriteRows(call, tile, kv_head, records);
}

// Writes one row's K and V into its page.
void AppendRow(const KvView& kv, const float* k, const float* v, std::byte* page, int64_t offset) {
  WithWorkingType(kv.dtype, [&](auto type) HWY_ATTR {
    using T = decltype(type);
    T* keys = reinterpret_cast<T*>(page);
    T* values = keys + kv.kv_heads * kv.head_dim * kPagePositions;
    for (int64_t head = 0; head < kv.kv_heads; ++head) {
      for (int64_t d = 0; d < kv.head_dim; ++d) {
        keys[(head * kv.head_dim + d) * kPagePositions + offset] = FromFloat<T>(k[head * kv.head_dim + d]);
        if (kv.latent_dim == 0) values[(head * kPagePositions + offset) * kv.head_dim + d] = FromFloat<T>(v[head * kv.head_dim + d]);
      }
    }
  });
}

}  // namespace
}  // namespace lime::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lime::cpu {

HWY_EXPORT(AttendTile);
HWY_EXPORT(AttendPiece);
HWY_EXPORT(MergeTile);
HWY_EXPORT(AppendRow);

// Below this, the work is done before a parked thread wakes.
constexpr int64_t kTinyMultiplyAdds = 64 * 1024;

// One piece of one tile, or the whole tile.
struct AttentionItem {
  int32_t tile;
  int32_t piece;  // -1: the whole tile
};

struct AttentionWorkspace::Impl {
  int64_t max_rows = 0, heads = 0, head_dim = 0;
  std::vector<AttentionTile> tiles;
  std::vector<AttentionItem> items;
  std::vector<float> records;
  int64_t record_capacity = 0;  // counted in records
  std::vector<float> carried;
};

namespace {

// Records of all pieces of one row, over all heads.
int64_t RecordsFor(const AttentionWorkspace::Options& options) {
  return options.heads * ((options.max_positions + kPiecePositions - 1) / kPiecePositions);
}
int64_t RecordFloats(const AttentionWorkspace::Options& options) {
  return kRecordAcc + RoundUp(options.head_dim, 16);
}
// Records of every row and head, if calls carry state.
int64_t CarriedFor(const AttentionWorkspace::Options& options) {
  return options.carries ? options.max_rows * options.heads : 0;
}
int64_t TilesFor(const AttentionWorkspace::Options& options) {
  return options.max_rows * RoundUp(options.heads, kTileRows) / kTileRows;
}

}  // namespace

AttentionWorkspace::AttentionWorkspace(const Options& options) : impl_(std::make_unique<Impl>()) {
  LIME_CHECK_LE(options.head_dim, kMaxHeadDim);
  Impl& w = *impl_;
  w.max_rows = options.max_rows;
  w.heads = options.heads;
  w.head_dim = options.head_dim;
  w.record_capacity = RecordsFor(options);
  w.records.resize(w.record_capacity * RecordFloats(options));
  w.carried.resize(CarriedFor(options) * RecordFloats(options));
  w.tiles.reserve(TilesFor(options));
  w.items.reserve(TilesFor(options) + w.record_capacity);
}

Bytes AttentionWorkspace::BytesFor(const Options& options) {
  const int64_t records = RecordsFor(options), tiles = TilesFor(options);
  return (records + CarriedFor(options)) * RecordFloats(options) * sizeof(float) + tiles * sizeof(AttentionTile) +
         (tiles + records) * sizeof(AttentionItem);
}

AttentionWorkspace::~AttentionWorkspace() = default;

Bytes AttentionWorkspace::bytes() const {
  return (impl_->records.capacity() + impl_->carried.capacity()) * sizeof(float) + impl_->tiles.capacity() * sizeof(AttentionTile) +
         impl_->items.capacity() * sizeof(AttentionItem);
}

namespace {

// Divides the rows of one sequence, [token, end), into tiles.
void AddTiles(const AttentionCall& call, int64_t token, int64_t end, std::vector<AttentionTile>& tiles) {
  const int64_t pairs = (end - token) * call.Group();
  for (int64_t first = 0; first < pairs; first += kTileRows) {
    AttentionTile tile{.token = token, .first = first, .rows = static_cast<int>(std::min<int64_t>(kTileRows, pairs - first))};
    tile.piece_begin = INT64_MAX;
    for (int r = 0; r < tile.rows; r++) {
      tile.piece_begin = std::min(tile.piece_begin, call.FirstPiece(call.Token(tile, r)));
      tile.piece_end = std::max(tile.piece_end, call.LastPiece(call.Token(tile, r)) + 1);
    }
    tile.piece_begin = std::max(tile.piece_begin, call.PieceBegin(token));
    tile.piece_end = std::min(tile.piece_end, call.pieces.end);
    if (tile.piece_begin < tile.piece_end) tiles.push_back(tile);
  }
}

void MakeTiles(const AttentionCall& call, std::vector<AttentionTile>& tiles) {
  tiles.clear();
  int64_t begin = 0;
  for (int64_t row = 1; row <= call.rows.count; ++row) {
    if (row < call.rows.count && call.Slot(row) == call.Slot(begin)) continue;
    AddTiles(call, begin, row, tiles);
    begin = row;
  }
}

// Makes one item for each tile, or one for each piece of a tile if there are too few tiles to keep
// all threads busy to the end.
void MakeItems(const AttentionCall& call, int num_threads, AttentionWorkspace::Impl& w) {
  constexpr int64_t kItemsPerThread = 16;
  const bool split = num_threads > 1 && static_cast<int64_t>(w.tiles.size()) * call.kv.kv_heads < kItemsPerThread * num_threads;
  int64_t records = 0;
  w.items.clear();
  for (int32_t index = 0; index < static_cast<int32_t>(w.tiles.size()); ++index) {
    AttentionTile& tile = w.tiles[index];
    const int64_t pieces = tile.piece_end - tile.piece_begin;
    const int64_t needed = pieces * tile.rows * call.kv.kv_heads;
    if (!split || pieces == 1 || records + needed > w.record_capacity) {
      w.items.push_back({index, -1});
      continue;
    }
    tile.first_record = records;
    records += needed;
    for (int64_t piece = tile.piece_begin; piece < tile.piece_end; ++piece) w.items.push_back({index, static_cast<int32_t>(piece)});
  }
}

// Approximate multiply-adds of the whole call; half of them are for scores.
int64_t MultiplyAdds(const AttentionCall& call) {
  int64_t seen = 0;
  for (int64_t row = 0; row < call.rows.count; ++row) seen += call.End(row) - call.Begin(row);
  return 2 * seen * call.shape.heads * call.kv.head_dim;
}

// The records of one kv head of a tile whose pieces are separate items.
float* TileRecords(const AttentionCall& call, const AttentionTile& tile, int64_t kv_head, AttentionWorkspace::Impl& w) {
  const int64_t pieces = tile.piece_end - tile.piece_begin;
  return w.records.data() + (tile.first_record + kv_head * pieces * tile.rows) * call.RecordFloats();
}

void RunItem(const AttentionCall& call, const AttentionItem& item, int64_t kv_head, AttentionWorkspace::Impl& w) {
  const AttentionTile& tile = w.tiles[item.tile];
  if (item.piece < 0) return HWY_DYNAMIC_DISPATCH(AttendTile)(call, tile, kv_head);
  float* records = TileRecords(call, tile, kv_head, w) + (item.piece - tile.piece_begin) * tile.rows * call.RecordFloats();
  HWY_DYNAMIC_DISPATCH(AttendPiece)(call, tile, kv_head, item.piece, records);
}

void MergeSplitTiles(ThreadPool& pool, const AttentionCall& call, AttentionWorkspace::Impl& w) {
  pool.ParallelFor(static_cast<int64_t>(w.tiles.size()) * call.kv.kv_heads, [&](int64_t i, int /*thread*/) {
    const AttentionTile& tile = w.tiles[i / call.kv.kv_heads];
    const int64_t kv_head = i % call.kv.kv_heads;
    if (tile.first_record >= 0) HWY_DYNAMIC_DISPATCH(MergeTile)(call, tile, kv_head, TileRecords(call, tile, kv_head, w));
  });
}

}  // namespace

void Attend(ThreadPool& pool, AttentionWorkspace& ws, const KvView& kv, const AttentionRows& rows, const float* q,
            const AttentionShape& shape, void* out, const AttentionPieces& pieces) {
  AttentionWorkspace::Impl& w = ws.impl();
  LIME_CHECK_LE(rows.count, w.max_rows);
  LIME_CHECK_LE(shape.heads, w.heads);
  LIME_CHECK_LE(kv.head_dim, w.head_dim);
  LIME_CHECK_EQ(shape.heads % kv.kv_heads, 0);
  LIME_CHECK(kv.latent_dim == 0 || (kv.kv_heads == 1 && kv.latent_dim <= kv.head_dim)) << kv.latent_dim;
  const bool all = pieces.begin == 0 && pieces.end == INT64_MAX && pieces.covered == nullptr;
  LIME_CHECK(all || !w.carried.empty()) << "the workspace carries nothing from one call to the next";
  const AttentionCall call{
      .kv = kv, .rows = rows, .shape = shape, .q = q, .out = out, .pieces = pieces, .carried = all ? nullptr : w.carried.data()};
  MakeTiles(call, w.tiles);
  const bool tiny = MultiplyAdds(call) < kTinyMultiplyAdds;
  MakeItems(call, tiny ? 1 : pool.num_threads(), w);
  const int64_t items = static_cast<int64_t>(w.items.size());
  const auto run = [&](int64_t i, int /*thread*/) { RunItem(call, w.items[i % items], i / items, w); };
  if (tiny) {
    for (int64_t i = 0; i < items * kv.kv_heads; ++i) run(i, 0);
    return;
  }
  pool.ParallelFor(items * kv.kv_heads, run);
  if (items > static_cast<int64_t>(w.tiles.size())) MergeSplitTiles(pool, call, w);
}

namespace {

// A call with these rows, for access to their carried state in the workspace.
AttentionCall CarriedBy(AttentionWorkspace& ws, const AttentionRows& rows, const AttentionShape& shape, int64_t head_dim) {
  AttentionWorkspace::Impl& w = ws.impl();
  LIME_CHECK(!w.carried.empty()) << "the workspace carries nothing";
  LIME_CHECK(rows.count <= w.max_rows && shape.heads <= w.heads && head_dim <= w.head_dim) << rows.count << " rows";
  return {.kv = {.head_dim = head_dim}, .rows = rows, .shape = shape, .carried = w.carried.data()};
}

}  // namespace

void GetCarried(AttentionWorkspace& ws, const AttentionRows& rows, const AttentionShape& shape, int64_t head_dim, int64_t end,
                float* records) {
  const AttentionCall call = CarriedBy(ws, rows, shape, head_dim);
  for (int64_t token = 0; token < rows.count; ++token) {
    const bool sees = call.FirstPiece(token) < end;
    for (int64_t head = 0; head < shape.heads; ++head, records += 2 + head_dim) {
      const float* const from = call.Carried(token, head);
      if (sees) {
        std::copy(from, from + 2, records);
        std::copy(from + kRecordAcc, from + kRecordAcc + head_dim, records + 2);
      } else {
        std::fill(records, records + 2 + head_dim, 0.0f);
      }
    }
  }
}

void SetCarried(AttentionWorkspace& ws, const AttentionRows& rows, const AttentionShape& shape, int64_t head_dim, const int32_t* covered,
                const float* records) {
  const AttentionCall call = CarriedBy(ws, rows, shape, head_dim);
  for (int64_t token = 0; token < rows.count; ++token, records += PackedRecordFloats(shape.heads, head_dim)) {
    if (call.FirstPiece(token) >= covered[call.Slot(token)]) continue;
    const float* from = records;
    for (int64_t head = 0; head < shape.heads; ++head, from += 2 + head_dim) {
      float* const into = call.Carried(token, head);
      std::copy(from, from + 2, into);
      std::copy(from + 2, from + 2 + head_dim, into + kRecordAcc);
    }
  }
}

void KvAppend(ThreadPool& pool, const KvView& kv, const AttentionRows& rows, const float* k, const float* v, int64_t stride) {
  ParallelRows(pool, rows.count, 2 * kv.kv_heads * kv.head_dim, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const int64_t position = rows.positions[row];
      const int32_t page = kv.page_table[rows.slots[row] * kv.table_stride + position / kPagePositions];
      HWY_DYNAMIC_DISPATCH(AppendRow)
      (kv, k + row * stride, v == nullptr ? nullptr : v + row * stride, kv.base + page * kv.page_bytes, position % kPagePositions);
    }
  });
}

}  // namespace lime::cpu
#endif  // HWY_ONCE
