// The parts of Linear that are compiled for each instruction set. Only linear.cc uses them. Every
// function may run on any thread.
#pragma once

#include <cstdint>

#include "kernels/cpu/linear/linear.h"

namespace lime::cpu {

// Lanes of a dot product.
inline constexpr int kChunk = 32;

// Chunks whose products share the lanes before these are added up. A longer dot product is the sum
// of such sums, in ascending order.
inline constexpr int64_t kSumChunks = 64;

// The order of lanes in registers. x is packed in the order of the weights that it meets.
enum class LaneOrder : uint8_t {
  kNatural,  // in ascending order
  // The even ones of 32 elements first, then the odd ones: two 4-bit weights share a byte, and two
  // bf16 weights a word.
  kEvenOdd,
  // kEvenOdd, but x of bf16 may stay unpacked, two elements in a word.
  kWords,
  // For the bf16 kernels: element k is in lane k / 2 mod 16 of plane k / 32 mod 2.
  kPairs,
  // For the bf16 kernels of packed weights: pairs of elements i and i + 2 of 4, or i and i + 4 of 8.
  // A lane is a row of weights.
  kPiecesOf4,
  kPiecesOf8,
};
inline constexpr LaneOrder kLaneOrders[] = {LaneOrder::kNatural, LaneOrder::kEvenOdd,   LaneOrder::kWords,
                                            LaneOrder::kPairs,   LaneOrder::kPiecesOf4, LaneOrder::kPiecesOf8};

// Tokens of one GEMM tile. The packed x of a tile has space for this many on every instruction set.
inline constexpr int kMaxTileTokens = 6;

// A GEMM panel has at most this many rows of W, and this many of their chunks at a time: half of a
// private cache.
inline constexpr int kMaxPanelRows = 64;
inline constexpr int64_t kPanelChunks = kSumChunks;

// Rows of packed weights whose scales and biases are expanded at a time.
inline constexpr int kPreparedRows = 16;

// Rows of one matrix.
struct RowRange {
  const Matrix* matrix;
  int64_t begin;
  int64_t count;
};

// x in the working dtype.
struct Activations {
  const void* data;
  DType dtype;
  int64_t tokens;
  int64_t stride;  // elements
  int64_t cols;
  LaneOrder order;  // of packed x

  int64_t chunks() const { return (cols + kChunk - 1) / kChunk; }
};

// Scratch memory of one thread.
struct ThreadScratch {
  float* panel;  // rows of weights in fp32: kMaxPanelRows * kPanelChunks * kChunk floats
  // Accumulators: kMaxPanelRows * kChunk floats per token of one tile; if rows have several blocks,
  // of all tokens.
  float* lanes;
  float* y;     // results: kMaxOutputs floats
  float* rows;  // scales and biases of kPreparedRows packed rows
};
inline constexpr int64_t kMaxOutputs = 4096;

// Up to this many tokens, each row is read once and multiplied directly. With more tokens, rows are
// first converted to panels.
inline constexpr int kMaxGemvTokens = 8;

// Packs x for GEMV: rows of fp32, padded with zeros to whole chunks.
void PackRows(const Activations& x, float* packed);
// y[token * rows.count + row]. REQUIRES: x.tokens * rows.count <= kMaxOutputs.
void DotRows(const RowRange& rows, const float* packed, int64_t tokens, const ThreadScratch& scratch);
// DotRows for LaneOrder::kWords. REQUIRES: bf16 weights.
void DotWords(const RowRange& rows, const float* packed, int64_t tokens, const ThreadScratch& scratch);

// Packs x for GEMM in tiles of TileTokens() tokens: [tile][plane][chunk][token][lane].
int64_t TileTokens();
void PackTile(const Activations& x, int64_t tile, float* packed);

// A result of a GEMM panel: y[token * stride + row - begin], for `count` tokens from `token`.
struct TileResult {
  int64_t token;
  int64_t count;
  int64_t stride;
  const float* y;
};
// Multiplies `rows` (at most kMaxPanelRows) with all tiles and calls done(context, result) for
// each.
void MultiplyPanel(const RowRange& rows, const float* packed, int64_t tokens, const ThreadScratch& scratch,
                   void (*done)(void* context, const TileResult& result), void* context);

// One set of these functions.
struct LinearKernels {
  int chunk_elements;
  int chunk_floats;  // of a chunk of one token in packed x
  int tile_tokens;
  int gemv_rows, gemm_rows;  // rows that are computed at a time
  decltype(&PackRows) pack_rows;
  decltype(&DotRows) dot_rows;
  decltype(&PackTile) pack_tile;
  decltype(&MultiplyPanel) multiply_panel;
};

// Highway's name of the instruction set in use, such as "AVX3".
const char* TargetName();

// Writes `count` rows from `row` of one token to out or add_to.
void FinishRows(const LinearTask& task, DType x_dtype, int64_t token, int64_t row, int64_t count, const float* y);

}  // namespace lime::cpu
