// The parts of Linear that are compiled once per instruction set. Used by linear.cc alone; every function runs on any thread.
#pragma once

#include <cstdint>

#include "kernels/cpu/linear.h"

namespace lime::cpu {

// Lanes of a dot product.
inline constexpr int kChunk = 32;

// Chunks whose products share the lanes before these are added up: a dot product of more is the sum of such sums, in ascending order.
inline constexpr int64_t kSumChunks = 64;

// Where the lanes lie in registers. x is packed in the order of the weights it meets.
enum class LaneOrder : uint8_t {
  kNatural,  // as they come
  kEvenOdd,  // within 32 elements the even ones first, as two 4-bit weights share a byte and two of bf16 a word
  kWords,    // kEvenOdd, and x of bf16 may stay as it is, two elements a word
  kPairs,    // of the bf16 kernels: lane k / 2 mod 16 of plane k / 32 mod 2
};
inline constexpr LaneOrder kLaneOrders[] = {LaneOrder::kNatural, LaneOrder::kEvenOdd, LaneOrder::kWords, LaneOrder::kPairs};

// Tokens of one GEMM tile: the packed x of a tile has room for this many on every instruction set.
inline constexpr int kMaxTileTokens = 6;

// Rows of W that one GEMM panel may have, and the chunks of them that it holds at a time: half of a private cache.
inline constexpr int kMaxPanelRows = 64;
inline constexpr int64_t kPanelChunks = kSumChunks;

// Rows of packed weights whose scales and biases are made ready at a time.
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
  LaneOrder order;  // to pack it in

  int64_t chunks() const { return (cols + kChunk - 1) / kChunk; }
};

// One thread's scratch memory.
struct ThreadScratch {
  float* panel;  // rows of weights in fp32: kMaxPanelRows * kPanelChunks * kChunk floats
  float* lanes;  // accumulators: kMaxPanelRows * kChunk floats per token of one tile, or of all tokens where rows take several blocks
  float* y;      // results: kMaxOutputs floats
  float* rows;   // scales and biases of kPreparedRows packed rows
};
inline constexpr int64_t kMaxOutputs = 4096;

// Up to this many tokens each row is read once and multiplied as it comes; above, rows become panels first.
inline constexpr int kMaxGemvTokens = 8;

// GEMV: x as rows of fp32, padded with zeros to whole chunks.
void PackRows(const Activations& x, float* packed);
// y[token * rows.count + row]. REQUIRES: x.tokens * rows.count <= kMaxOutputs.
void DotRows(const RowRange& rows, const float* packed, int64_t tokens, const ThreadScratch& scratch);
// The same for LaneOrder::kWords. REQUIRES: bf16 weights.
void DotWords(const RowRange& rows, const float* packed, int64_t tokens, const ThreadScratch& scratch);

// GEMM: x as tiles of TileTokens() tokens, [tile][plane][chunk][token][lane].
int64_t TileTokens();
void PackTile(const Activations& x, int64_t tile, float* packed);

// What a GEMM panel's results are given to: y[token * stride + row - begin], for `count` tokens from `token`.
struct TileResult {
  int64_t token;
  int64_t count;
  int64_t stride;
  const float* y;
};
// Multiplies `rows` (at most kMaxPanelRows) with all tiles and calls done(context, result) for each.
void MultiplyPanel(const RowRange& rows, const float* packed, int64_t tokens, const ThreadScratch& scratch,
                   void (*done)(void* context, const TileResult& result), void* context);

// One set of the functions above. A chunk of packed x has 128 bytes in every set, and so has a chunk of a row in a panel.
struct LinearKernels {
  int chunk_elements;
  int tile_tokens;  // at most kMaxTileTokens
  decltype(&PackRows) pack_rows;
  decltype(&DotRows) dot_rows;
  decltype(&PackTile) pack_tile;
  decltype(&MultiplyPanel) multiply_panel;
};

// "AVX3", as Highway calls the instruction set in use.
const char* TargetName();

// out or add_to of `count` rows from `row` of one token.
void FinishRows(const LinearTask& task, DType x_dtype, int64_t token, int64_t row, int64_t count, const float* y);

}  // namespace lime::cpu
