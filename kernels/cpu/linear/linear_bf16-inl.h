// GEMV and GEMM of bf16 by bf16, written in terms of one step of a dot product:
//
//   // acc[i] += w[2i] x[2i] + w[2i + 1] x[2i + 1]
//   struct Dot { static __m512 Step(__m512 acc, __m512i w, __m512i x); };
//
// Include it once in each translation unit, after pushing the target attributes of the step. A
// chunk is 64 elements: 32 for each of two planes of 16 lanes. Block sizes and prefetching are the
// same as in linear_gemm.cc, in bytes.

namespace lime::cpu::bf16 {
namespace {

constexpr int kPlaneElements = 32, kChunkElements = 2 * kPlaneElements;
constexpr int64_t kVecBytes = 64;
constexpr int kTileTokens = kMaxTileTokens, kTileRows = 4;
constexpr int64_t kTileFloats = kTileRows * kTileTokens * 16;  // accumulators of one plane
// Chunks of one plane that a tile processes before the next rows. The tile's x stays in L1.
constexpr int64_t kBlockChunks = 32;
// Steps by which a tile prefetches its weights, which are in L2.
constexpr int64_t kStepsAhead = 4;
// With this many tokens or more, a panel prefetches the next x while it computes; with fewer, the
// next weights.
constexpr int64_t kManyTokens = 64;
// The prefetch of a row is this far ahead: the hardware stops at the end of a 4 KiB page.
constexpr int64_t kPrefetchBytes = 2048;

#define LIME_UNROLL _Pragma("GCC unroll 32")

// Loads 32 elements. Only `count` of them exist; nothing beyond them is read.
HWY_INLINE __m512i LoadPlane(const BF16* p, int64_t count) {
  if (count >= kPlaneElements) return _mm512_loadu_si512(p);
  return count <= 0 ? _mm512_setzero_si512() : _mm512_maskz_loadu_epi16((1u << count) - 1, p);
}

HWY_INLINE __m512i LoadVec(const char* p) {
  return _mm512_load_si512(p);
}

// Adds up the lanes of four dot products: lanes 8 apart, then 4, 2 and 1 apart.
HWY_INLINE __m128 SumLanes(const __m512 (&v)[4]) {
  const __m512 ab = _mm512_add_ps(_mm512_shuffle_f32x4(v[0], v[1], 0x44), _mm512_shuffle_f32x4(v[0], v[1], 0xee));
  const __m512 cd = _mm512_add_ps(_mm512_shuffle_f32x4(v[2], v[3], 0x44), _mm512_shuffle_f32x4(v[2], v[3], 0xee));
  __m512 sum = _mm512_add_ps(_mm512_shuffle_f32x4(ab, cd, 0x88), _mm512_shuffle_f32x4(ab, cd, 0xdd));
  sum = _mm512_add_ps(sum, _mm512_permute_ps(sum, 0x4e));
  sum = _mm512_add_ps(sum, _mm512_permute_ps(sum, 0xb1));
  const __m512i firsts = _mm512_castsi128_si512(_mm_setr_epi32(0, 4, 8, 12));
  return _mm512_castps512_ps128(_mm512_permutexvar_ps(firsts, sum));
}

// GEMV.

template <class Dot, int kTokens>
HWY_INLINE void AddChunk(__m512i w0, __m512i w1, const char* x, __m512 (&acc)[kTokens][2]) {
  LIME_UNROLL for (int t = 0; t < kTokens; ++t) {
    acc[t][0] = Dot::Step(acc[t][0], w0, LoadVec(x + 2 * t * kVecBytes));
    acc[t][1] = Dot::Step(acc[t][1], w1, LoadVec(x + (2 * t + 1) * kVecBytes));
  }
}

// One row with all tokens: y[token * stride].
template <class Dot, int kTokens>
HWY_NOINLINE void DotRow(const BF16* w, int64_t cols, const char* x, float* y, int64_t stride) {
  __m512 acc[kTokens][2];
  LIME_UNROLL for (int t = 0; t < kTokens; ++t) acc[t][0] = acc[t][1] = _mm512_setzero_ps();
  for (; cols >= kChunkElements; cols -= kChunkElements, w += kChunkElements, x += 2 * kTokens * kVecBytes) {
    __builtin_prefetch(reinterpret_cast<const char*>(w) + kPrefetchBytes);
    __builtin_prefetch(reinterpret_cast<const char*>(w) + kPrefetchBytes + kVecBytes);
    AddChunk<Dot>(_mm512_loadu_si512(w), _mm512_loadu_si512(w + kPlaneElements), x, acc);
  }
  if (cols > 0) AddChunk<Dot>(LoadPlane(w, cols), LoadPlane(w + kPlaneElements, cols - kPlaneElements), x, acc);
  LIME_UNROLL for (int t = 0; t < kTokens; t += 4) {
    __m512 sum[4];
    LIME_UNROLL for (int i = 0; i < 4; ++i) sum[i] = t + i < kTokens ? _mm512_add_ps(acc[t + i][0], acc[t + i][1]) : _mm512_setzero_ps();
    float four[4];
    _mm_storeu_ps(four, SumLanes(sum));
    for (int i = 0; i < 4 && t + i < kTokens; ++i) y[(t + i) * stride] = four[i];
  }
}

template <class Dot, int kTokens>
void DotRowsOf(const RowRange& rows, const float* packed, int64_t tokens, const ThreadScratch& scratch) {
  if constexpr (kTokens > 1) {
    if (tokens < kTokens) return DotRowsOf<Dot, kTokens - 1>(rows, packed, tokens, scratch);
  }
  const Matrix& m = *rows.matrix;
  const BF16* w = static_cast<const BF16*>(m.data) + rows.begin * m.cols;
  for (int64_t r = 0; r < rows.count; ++r, w += m.cols) {
    DotRow<Dot, kTokens>(w, m.cols, reinterpret_cast<const char*>(packed), scratch.y + r, rows.count);
  }
}

template <class Dot>
void DotRows(const RowRange& rows, const float* packed, int64_t tokens, const ThreadScratch& scratch) {
  DotRowsOf<Dot, kMaxGemvTokens>(rows, packed, tokens, scratch);
}

// GEMM.

// A range of chunks of all rows.
struct Block {
  int64_t begin;
  int64_t chunks;
  bool last;
};

// Packs rows side by side: [quad of rows][plane][chunk][row][32 elements]. If the last quad has too
// few rows, the others are zero.
void PackPanel(const RowRange& rows, const Block& block, char* panel) {
  const Matrix& m = *rows.matrix;
  const int64_t plane_bytes = block.chunks * kTileRows * kVecBytes;
  for (int64_t r = 0; r < (rows.count + kTileRows - 1) / kTileRows * kTileRows; ++r) {
    char* out = panel + r / kTileRows * 2 * plane_bytes + r % kTileRows * kVecBytes;
    int64_t count = r < rows.count ? m.cols - block.begin * kChunkElements : 0;
    const BF16* w = static_cast<const BF16*>(m.data) + (rows.begin + r) * m.cols + block.begin * kChunkElements;
    for (int64_t c = 0; c < block.chunks; ++c, out += kTileRows * kVecBytes, w += kChunkElements, count -= kChunkElements) {
      _mm512_store_si512(out, LoadPlane(w, count));
      _mm512_store_si512(out + plane_bytes, LoadPlane(w + kPlaneElements, count - kPlaneElements));
    }
  }
}

// Memory that a tile prefetches while it computes: one address for each step.
struct Ahead {
  const char* p;
  int64_t stride;  // bytes
};

// Adds `steps` chunks of one plane of kTokens tokens and four rows to lanes[row][token].
template <class Dot, int kTokens>
HWY_NOINLINE void MultiplyTile(const char* x, const char* w, int64_t steps, bool first, float* lanes, Ahead& ahead) {
  __m512 acc[kTileRows][kTokens];
  LIME_UNROLL for (int r = 0; r < kTileRows; ++r) {
    LIME_UNROLL for (int t = 0; t < kTokens; ++t) {
      acc[r][t] = first ? _mm512_setzero_ps() : _mm512_load_ps(lanes + (r * kTileTokens + t) * 16);
    }
  }
  const char* near = ahead.p;
  const int64_t near_stride = ahead.stride;
  for (int64_t s = 0; s < steps; ++s) {
    __builtin_prefetch(near, 0, 2);
    near += near_stride;
    __m512i row[kTileRows];
    LIME_UNROLL for (int r = 0; r < kTileRows; ++r) row[r] = LoadVec(w + r * kVecBytes);
    LIME_UNROLL for (int t = 0; t < kTokens; ++t) {
      const __m512i token = LoadVec(x + t * kVecBytes);
      if (t < kTileRows) __builtin_prefetch(w + (kStepsAhead * kTileRows + t) * kVecBytes);
      LIME_UNROLL for (int r = 0; r < kTileRows; ++r) acc[r][t] = Dot::Step(acc[r][t], row[r], token);
    }
    x += kTileTokens * kVecBytes;
    w += kTileRows * kVecBytes;
  }
  ahead.p = near;
  LIME_UNROLL for (int r = 0; r < kTileRows; ++r) {
    LIME_UNROLL for (int t = 0; t < kTokens; ++t) _mm512_store_ps(lanes + (r * kTileTokens + t) * 16, acc[r][t]);
  }
}

// Accumulators that were stored after the block before are in the shared cache.
HWY_INLINE void PrefetchLanes(const float* lanes) {
  for (int64_t i = 0; i < kTileFloats; i += 16) __builtin_prefetch(lanes + i);
}

// Adds up the lanes [plane][row][token] of four rows; y[token * stride + row].
void SumTile(const float* lanes, int64_t tokens, float* y, int64_t stride) {
  for (int64_t t = 0; t < tokens; ++t) {
    __m512 sum[kTileRows];
    LIME_UNROLL for (int r = 0; r < kTileRows; ++r) {
      const float* p = lanes + (r * kTileTokens + t) * 16;
      sum[r] = _mm512_add_ps(_mm512_load_ps(p), _mm512_load_ps(p + kTileFloats));
    }
    _mm_storeu_ps(y + t * stride, SumLanes(sum));
  }
}

// Multiplies one tile of tokens, whose x is [plane][chunk of all][token][32 elements], with one
// block of the whole panel. lanes: [quad][plane][kTileFloats].
template <class Dot, int kTokens>
void MultiplyTileWithPanel(int64_t tokens, const char* x, int64_t all_chunks, const Block& block, int64_t quads,
                           const ThreadScratch& scratch, float* lanes, bool x_ahead, Ahead& ahead) {
  if constexpr (kTokens > 1) {
    if (tokens < kTokens) {
      return MultiplyTileWithPanel<Dot, kTokens - 1>(tokens, x, all_chunks, block, quads, scratch, lanes, x_ahead, ahead);
    }
  }
  const char* panel = reinterpret_cast<const char*>(scratch.panel);
  for (int64_t p = 0; p < 2; ++p) {
    const char* x_plane = x + (p * all_chunks + block.begin) * kTileTokens * kVecBytes;
    for (int64_t c = 0; c < block.chunks; c += kBlockChunks) {
      const int64_t steps = std::min(kBlockChunks, block.chunks - c);
      const char* x_block = x_plane + c * kTileTokens * kVecBytes;
      if (x_ahead) ahead.p = x_block + steps * kTileTokens * kVecBytes;
      for (int64_t q = 0; q < quads; ++q) {
        if (c == 0 && block.begin > 0) PrefetchLanes(lanes + ((q + 1) * 2 + p) * kTileFloats);
        const char* w = panel + ((q * 2 + p) * block.chunks + c) * kTileRows * kVecBytes;
        MultiplyTile<Dot, kTokens>(x_block, w, steps, block.begin + c == 0, lanes + (q * 2 + p) * kTileFloats, ahead);
      }
    }
  }
  if (!block.last) return;
  for (int64_t q = 0; q < quads; ++q) SumTile(lanes + q * 2 * kTileFloats, kTokens, scratch.y + q * kTileRows, quads * kTileRows);
}

template <class Dot>
void MultiplyPanel(const RowRange& rows, const float* packed, int64_t tokens, const ThreadScratch& scratch,
                   void (*done)(void*, const TileResult&), void* context) {
  const Matrix& m = *rows.matrix;
  const int64_t chunks = (m.cols + kChunkElements - 1) / kChunkElements, quads = (rows.count + kTileRows - 1) / kTileRows;
  const int64_t tiles = (tokens + kTileTokens - 1) / kTileTokens;
  const bool x_ahead = tokens >= kManyTokens;
  const int64_t next_bytes = std::min(rows.count, m.rows - rows.begin - rows.count) * m.RowBytes();
  Ahead ahead{.p = static_cast<const char*>(m.data) + (rows.begin + rows.count) * m.RowBytes(),
              .stride = next_bytes / (tiles * quads * 2 * chunks)};
  if (x_ahead) ahead.stride = kTileTokens * kVecBytes / quads;
  if (next_bytes == 0 && !x_ahead) ahead = {.p = reinterpret_cast<const char*>(scratch.panel), .stride = 0};
  // With one block, all tiles use the same accumulators.
  const int64_t tile_lanes = chunks > kPanelChunks ? quads * 2 * kTileFloats : 0;
  for (int64_t begin = 0; begin < chunks; begin += kPanelChunks) {
    const Block block{begin, std::min(kPanelChunks, chunks - begin), begin + kPanelChunks >= chunks};
    PackPanel(rows, block, reinterpret_cast<char*>(scratch.panel));
    float* lanes = scratch.lanes;
    for (int64_t token = 0; token < tokens; token += kTileTokens, lanes += tile_lanes) {
      const int64_t count = std::min<int64_t>(kTileTokens, tokens - token);
      const char* x = reinterpret_cast<const char*>(packed) + token * chunks * 2 * kVecBytes;
      MultiplyTileWithPanel<Dot, kTileTokens>(count, x, chunks, block, quads, scratch, lanes, x_ahead, ahead);
      if (block.last) done(context, {token, count, quads * kTileRows, scratch.y});
    }
  }
}

}  // namespace
}  // namespace lime::cpu::bf16

#include "kernels/cpu/linear/linear_packed-inl.h"
#include "kernels/cpu/linear/linear_packed_columns-inl.h"

namespace lime::cpu::bf16 {
namespace {

// Columns.

constexpr int64_t kPairsAhead = 6;  // columns lie apart, so the hardware does not prefetch them

// kChunks times 32 rows, from row 32 * chunk of the tile: [even rows, odd rows].
template <class Dot, int kChunks>
HWY_NOINLINE void AddPairs(const ColumnTile& tile, std::span<const ColumnEntry> entries, int64_t chunk) {
  const int64_t row = tile.begin + chunk * kPlaneElements, count = tile.begin + tile.count - row;
  const ColumnEntry *e = entries.data(), *const end = e + entries.size();
  while (e != end) {
    const int32_t lane = e->lane;
    float* const lanes = tile.lanes + lane * tile.stride + chunk * kPlaneElements;
    __m512 acc[kChunks][2];
    LIME_UNROLL for (int i = 0; i < 2 * kChunks; ++i) acc[i / 2][i % 2] = _mm512_loadu_ps(lanes + 16 * i);
    for (; e != end && e->lane == lane; ++e) {
      const ColumnEntry& ahead = *(e + std::min<int64_t>(kPairsAhead, end - e - 1));
      LIME_UNROLL for (int c = 0; c < kChunks; ++c) {
        __builtin_prefetch(static_cast<const BF16*>(ahead.column) + row + c * kPlaneElements);
        __builtin_prefetch(static_cast<const BF16*>(ahead.odd) + row + c * kPlaneElements);
      }
      const BF16 *even = static_cast<const BF16*>(e->column) + row, *odd = static_cast<const BF16*>(e->odd) + row;
      const __m512i x = _mm512_set1_epi32(static_cast<int>(e->x));
      LIME_UNROLL for (int c = 0; c < kChunks; ++c) {
        const __m512i a = LoadPlane(even + c * kPlaneElements, count - c * kPlaneElements);
        const __m512i b = LoadPlane(odd + c * kPlaneElements, count - c * kPlaneElements);
        acc[c][0] = Dot::Step(acc[c][0], _mm512_mask_blend_epi16(0xaaaaaaaa, a, _mm512_slli_epi32(b, 16)), x);
        acc[c][1] = Dot::Step(acc[c][1], _mm512_mask_blend_epi16(0xaaaaaaaa, _mm512_srli_epi32(a, 16), b), x);
      }
    }
    LIME_UNROLL for (int i = 0; i < 2 * kChunks; ++i) _mm512_storeu_ps(lanes + 16 * i, acc[i / 2][i % 2]);
  }
}

template <class Dot>
void AddColumns(const ColumnTile& tile, std::span<const ColumnEntry> entries) {
  constexpr int kTileChunks = kMaxTileRows / kPlaneElements;
  if (tile.count == kMaxTileRows) return AddPairs<Dot, kTileChunks>(tile, entries, 0);
  for (int64_t chunk = 0; chunk * kPlaneElements < tile.count; ++chunk) AddPairs<Dot, 1>(tile, entries, chunk);
}

// For the benchmark and the tests of a single step.

template <class Dot>
void Step(const BF16* w, const BF16* x, float* acc) {
  _mm512_storeu_ps(acc, Dot::Step(_mm512_loadu_ps(acc), _mm512_loadu_si512(w), _mm512_loadu_si512(x)));
}

template <class Dot>
float Spin(int64_t rounds) {
  __m512 acc[kSpinSteps];
  LIME_UNROLL for (int i = 0; i < kSpinSteps; ++i) acc[i] = _mm512_set1_ps(static_cast<float>(i));
  const __m512i w = _mm512_set1_epi16(0x3c00), x = _mm512_set1_epi16(0x3b80);
  for (int64_t round = 0; round < rounds; ++round) {
    LIME_UNROLL for (int i = 0; i < kSpinSteps; ++i) acc[i] = Dot::Step(acc[i], w, x);
  }
  LIME_UNROLL for (int i = 1; i < kSpinSteps; ++i) acc[0] = _mm512_add_ps(acc[0], acc[i]);
  return _mm512_cvtss_f32(acc[0]);
}

template <class Dot>
constexpr Bf16Kernels KernelsOf() {
  return {.linear = {.chunk_elements = kChunkElements,
                     .chunk_floats = kChunk,
                     .tile_tokens = kTileTokens,
                     .gemv_rows = 1,
                     .gemm_rows = kTileRows,
                     .pack_rows = PackRows,
                     .dot_rows = DotRows<Dot>,
                     .pack_tile = PackTile,
                     .multiply_panel = MultiplyPanel<Dot>},
          .packed = {.chunk_elements = kPlaneElements,
                     .chunk_floats = kPackedChunkFloats,
                     .tile_tokens = kPackedTileTokens,
                     .gemv_rows = kBlockRows,
                     .gemm_rows = kPairRows,
                     .pack_rows = PackPairRows<Dot>,
                     .dot_rows = DotPackedRows<Dot>,
                     .pack_tile = PackPairTile<Dot>,
                     .multiply_panel = MultiplyPackedPanel<Dot>},
          .add_columns = AddColumns<Dot>,
          .add_codes = AddCodes<Dot>,
          .sum_group = SumOfGroup<Dot>,
          .end_group = EndGroup,
          .step = Step<Dot>,
          .spin = Spin<Dot>};
}

}  // namespace
}  // namespace lime::cpu::bf16
