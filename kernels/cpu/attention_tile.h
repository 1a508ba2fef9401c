// Divides Attend into work items. No division changes a bit of the result.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

#include "kernels/cpu/attention.h"
#include "planner/base/float_bits.h"

namespace lime::cpu {

inline constexpr int kTileRows = 8;
inline constexpr int64_t kRecordAcc = 16;  // index of acc in a record

// Up to 8 query rows of one sequence that share a kv head, and so one pass over K and V. Pairs (row
// of the batch, head of the group) are counted from row `token`; the head changes fastest. Row i of
// the tile is pair `first + i`.
struct AttentionTile {
  int64_t token = 0;
  int64_t first = 0;
  int rows = 0;             // 1 .. kTileRows
  int64_t piece_begin = 0;  // pieces of the call that any row of the tile sees
  int64_t piece_end = 0;
  // Index of its pieces' results in the workspace. -1: one work item does the whole tile.
  int64_t first_record = -1;
};

// Input of every work item.
//
// Record: the state of one row and head after one or more pieces: max, sum, 14 floats of padding,
// acc [acc_width].
struct AttentionCall {
  KvView kv;
  AttentionRows rows;
  AttentionShape shape;
  const float* q = nullptr;
  void* out = nullptr;
  AttentionPieces pieces;
  // Records [rows, heads]. Null: no row has pieces before or behind the call's.
  float* carried = nullptr;

  int64_t Group() const { return shape.heads / kv.kv_heads; }
  int64_t ValueDim() const { return kv.latent_dim > 0 ? kv.latent_dim : kv.head_dim; }
  int64_t AccWidth() const { return (ValueDim() + 15) / 16 * 16; }
  int64_t RecordFloats() const { return kRecordAcc + AccWidth(); }
  int64_t Token(const AttentionTile& tile, int row) const { return tile.token + (tile.first + row) / Group(); }
  int64_t Head(const AttentionTile& tile, int64_t kv_head, int row) const { return kv_head * Group() + (tile.first + row) % Group(); }
  // Positions [Begin, End) that a row of the batch sees.
  int64_t End(int64_t token) const { return int64_t{rows.positions[token]} + 1; }
  int64_t Begin(int64_t token) const { return shape.window > 0 && End(token) > shape.window ? End(token) - shape.window : 0; }
  // Pieces [FirstPiece, LastPiece] that the row sees.
  int64_t FirstPiece(int64_t token) const { return Begin(token) / kPiecePositions; }
  int64_t LastPiece(int64_t token) const { return (End(token) - 1) / kPiecePositions; }
  int64_t Slot(int64_t token) const { return rows.slots == nullptr ? 0 : rows.slots[token]; }
  // First piece that the call computes for the row. The state after earlier pieces is carried.
  int64_t PieceBegin(int64_t token) const {
    return pieces.covered == nullptr ? pieces.begin : std::max<int64_t>(pieces.begin, pieces.covered[Slot(token)]);
  }
  // Gate of the row and head; null: there is none.
  const float* Gate(int64_t token, int64_t head) const {
    return shape.gate.data == nullptr ? nullptr : shape.gate.data + token * shape.gate.stride + head * shape.gate.head_stride;
  }
  // Sink of the head; minus infinity, whose weight is 0: there is none.
  float Sink(int64_t head) const {
    float sink = -std::numeric_limits<float>::infinity();
    if (shape.sinks.data == nullptr) return sink;
    WithWorkingType(shape.sinks.dtype, [&](auto type) { sink = ToFloat(static_cast<const decltype(type)*>(shape.sinks.data)[head]); });
    return sink;
  }
  float* Carried(int64_t token, int64_t head) const { return carried + (token * shape.heads + head) * RecordFloats(); }
};

}  // namespace lime::cpu
