#include <algorithm>

#include "kernels/cpu/base/hwy_targets.h"
#include "kernels/cpu/linear/linear_kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/linear/linear_gemm.cc"
#include <hwy/cache_control.h>
#include <hwy/foreach_target.h>  // IWYU pragma: keep

#include "kernels/cpu/linear/linear_rows-inl.h"

HWY_BEFORE_NAMESPACE();
namespace lime::cpu::HWY_NAMESPACE {
namespace {

// Sized for 16 or 32 vector registers: the accumulators, the operands of one row (or column), and
// one operand of the other side.
constexpr int kTileTokens = kVecLanes == 8 ? 3 : kMaxTileTokens;
constexpr int kTileRows = 4;
constexpr int64_t kTileLanes = kTileRows * kTileTokens * kVecLanes;  // accumulators of one plane
// Chunks of one plane that a tile processes before the next rows. The tile's x stays in L1.
constexpr int64_t kBlockChunks = 32;
// With this many tokens or more, a panel prefetches the next x while it computes; with fewer, the
// next weights.
constexpr int64_t kManyTokens = 64;

int64_t TileTokensImpl() {
  return kTileTokens;
}

void PackTileImpl(const Activations& x, int64_t tile, float* packed) {
  const int64_t chunks = x.chunks(), plane = chunks * kTileTokens * kVecLanes;
  WithWorkingType(x.dtype, [&](auto type) HWY_ATTR {
    using T = decltype(type);
    for (int64_t i = 0; i < kTileTokens; ++i) {
      // If a tile has too few tokens, the last one is repeated.
      const int64_t token = std::min(tile * kTileTokens + i, x.tokens - 1);
      const T* row = static_cast<const T*>(x.data) + token * x.stride;
      for (int64_t c = 0; c < chunks; ++c) {
        LaneVec lanes[kPlanes];
        LoadChunk(row + c * kChunk, x.cols - c * kChunk, x.order, lanes);
        float* out = packed + (c * kTileTokens + i) * kVecLanes;
        LIME_UNROLL for (int p = 0; p < kPlanes; ++p) StoreVec(lanes[p], out + p * plane);
      }
    }
  });
}

// A range of chunks of all rows.
struct Block {
  int64_t begin;
  int64_t chunks;
  bool last;
  bool even_odd;  // lanes of even elements come first
};

// Converts rows to fp32: [quad of rows][plane][chunk][row][lane]. If the last quad has too few
// rows, the others are zero.
template <class Row>
void PackPanelOf(const RowRange& rows, const Block& block, float* row_scratch, float* panel) {
  const int64_t plane = block.chunks * kTileRows * kVecLanes;
  for (int64_t r = 0; r < (rows.count + kTileRows - 1) / kTileRows * kTileRows; ++r) {
    float* out = panel + r / kTileRows * kPlanes * plane + r % kTileRows * kVecLanes;
    const auto store = [&](const LaneVec(&w)[1][kPlanes]) HWY_ATTR {
      LIME_UNROLL for (int p = 0; p < kPlanes; ++p) StoreVec(w[0][p], out + p * plane);
      out += kTileRows * kVecLanes;
    };
    if (r < rows.count) {
      if (r % kPreparedRows == 0) Row::Prepare(*rows.matrix, rows.begin + r, std::min<int64_t>(kPreparedRows, rows.count - r), row_scratch);
      Row row[1] = {Row(*rows.matrix, rows.begin + r, block.begin, r % kPreparedRows, row_scratch)};
      const Matrix& m = *rows.matrix;
      ForEachChunk<1>(
          row, {block.chunks, Row::UnitsPerGroupLog2(m), block.last && Row::HasTail(m)}, [] {}, store);
    } else {
      LaneVec zero[1][kPlanes];
      LIME_UNROLL for (int p = 0; p < kPlanes; ++p) zero[0][p] = hn::Zero(LaneTag());
      for (int64_t c = 0; c < block.chunks; ++c) store(zero);
    }
  }
}

// Memory that a tile prefetches while it computes: one address for each step.
struct Ahead {
  const char* p;
  int64_t stride;  // bytes
};

// Adds `steps` chunks of one plane of kTokens tokens and four rows to lanes[row][token].
template <int kTokens>
void MultiplyTile(const float* HWY_RESTRICT x, const float* HWY_RESTRICT w, int64_t steps, bool first, float* HWY_RESTRICT lanes,
                  Ahead& ahead) {
  LaneVec acc[kTileRows][kTokens];
  LIME_UNROLL for (int r = 0; r < kTileRows; ++r) {
    LIME_UNROLL for (int t = 0; t < kTokens; ++t) {
      acc[r][t] = first ? hn::Zero(LaneTag()) : LoadVec(lanes + (r * kTileTokens + t) * kVecLanes);
    }
  }
  const char* near = ahead.p;
  const auto step = [&] HWY_ATTR {
    LaneVec row[kTileRows];
    LIME_UNROLL for (int r = 0; r < kTileRows; ++r) row[r] = LoadVec(w + r * kVecLanes);
    LIME_UNROLL for (int t = 0; t < kTokens; ++t) {
      const LaneVec token = LoadVec(x + t * kVecLanes);
      LIME_UNROLL for (int r = 0; r < kTileRows; ++r) acc[r][t] = FusedMulAdd(row[r], token, acc[r][t]);
    }
    x += kTileTokens * kVecLanes;
    w += kTileRows * kVecLanes;
  };
  for (int64_t s = 0; s + 1 < steps; s += 2) {
    __builtin_prefetch(near, 0, 2);
    near += 2 * ahead.stride;
    step(), step();
  }
  if (steps % 2 != 0) step();
  ahead.p = near;
  LIME_UNROLL for (int r = 0; r < kTileRows; ++r) {
    LIME_UNROLL for (int t = 0; t < kTokens; ++t) StoreVec(acc[r][t], lanes + (r * kTileTokens + t) * kVecLanes);
  }
}

// Adds up the lanes [row][token] of four rows; `lanes` has a pointer for each plane. A row's first
// block sets y[token * stride + row], later blocks add to it.
HWY_INLINE void SumTile(const float* const (&lanes)[kPlanes], int64_t tokens, bool first, bool even_odd, float* y, int64_t stride) {
  for (int64_t t = 0; t < tokens; ++t) {
    LaneVec v[kTileRows][kPlanes];
    LIME_UNROLL for (int r = 0; r < kTileRows; ++r) {
      LIME_UNROLL for (int p = 0; p < kPlanes; ++p) v[r][p] = LoadVec(lanes[p] + (r * kTileTokens + t) * kVecLanes);
    }
    float sums[kTileRows], *out = y + t * stride;
    SumLanes(v, even_odd, sums);
    LIME_UNROLL for (int r = 0; r < kTileRows; ++r) out[r] = first ? sums[r] : out[r] + sums[r];
  }
}

// Multiplies one tile of tokens, whose x is [plane][chunk of all][token][lane], with one block of
// the whole panel. y: [token][row].
template <int kTokens>
void MultiplyTileWithPanel(const float* x, int64_t all_chunks, const Block& block, int64_t quads, const ThreadScratch& scratch, float* y,
                           bool x_ahead, Ahead& ahead) {
  // If a plane is finished in one step, its lanes are added up at once, and the next rows use the
  // same memory.
  const auto lanes_of = [&](int64_t p, int64_t q) HWY_ATTR {
    const bool at_once = p == kPlanes - 1 && block.chunks <= kBlockChunks;
    return scratch.lanes + (p * quads + (at_once ? 0 : q)) * kTileLanes;
  };
  for (int64_t p = 0; p < kPlanes; ++p) {
    const float* x_plane = x + (p * all_chunks + block.begin) * kTileTokens * kVecLanes;
    const float* w_plane = scratch.panel + p * block.chunks * kTileRows * kVecLanes;
    for (int64_t c = 0; c < block.chunks; c += kBlockChunks) {
      const int64_t steps = std::min(kBlockChunks, block.chunks - c);
      const bool sums = p == kPlanes - 1 && c + steps == block.chunks;
      if (x_ahead) ahead.p = reinterpret_cast<const char*>(x_plane + (c + steps) * kTileTokens * kVecLanes);
      for (int64_t q = 0; q < quads; ++q) {
        MultiplyTile<kTokens>(x_plane + c * kTileTokens * kVecLanes, w_plane + (q * kPlanes * block.chunks + c) * kTileRows * kVecLanes,
                              steps, c == 0, lanes_of(p, q), ahead);
        if (!sums) continue;
        const float* lanes[kPlanes];
        for (int64_t of = 0; of < kPlanes; ++of) lanes[of] = lanes_of(of, q);
        SumTile(lanes, kTokens, block.begin == 0, block.even_odd, y + q * kTileRows, quads * kTileRows);
      }
    }
  }
}

template <int kTokens>
void MultiplyTileOf(int64_t tokens, const float* x, int64_t all_chunks, const Block& block, int64_t quads, const ThreadScratch& scratch,
                    float* y, bool x_ahead, Ahead& ahead) {
  if (tokens >= kTokens) return MultiplyTileWithPanel<kTokens>(x, all_chunks, block, quads, scratch, y, x_ahead, ahead);
  if constexpr (kTokens > 1) MultiplyTileOf<kTokens - 1>(tokens, x, all_chunks, block, quads, scratch, y, x_ahead, ahead);
}

void MultiplyPanelImpl(const RowRange& rows, const float* packed, int64_t tokens, const ThreadScratch& scratch,
                       void (*done)(void*, const TileResult&), void* context) {
  const Matrix& m = *rows.matrix;
  const int64_t chunks = (m.cols + kChunk - 1) / kChunk, quads = (rows.count + kTileRows - 1) / kTileRows;
  const int64_t tiles = (tokens + kTileTokens - 1) / kTileTokens;
  const bool x_ahead = tokens >= kManyTokens;
  const char* next_rows = static_cast<const char*>(m.data) + (rows.begin + rows.count) * m.RowBytes();
  const int64_t next_bytes = std::min(rows.count, m.rows - rows.begin - rows.count) * m.RowBytes();
  Ahead ahead{.p = next_rows, .stride = next_bytes / (tiles * quads * kPlanes * chunks)};
  if (x_ahead) ahead.stride = kTileTokens * kVecLanes * static_cast<int64_t>(sizeof(float)) / quads;
  if (next_bytes == 0 && !x_ahead) ahead = {.p = reinterpret_cast<const char*>(scratch.panel), .stride = 0};
  // With one block, all tiles use the same results. Otherwise the sums of all tiles are stored
  // behind the lanes.
  const bool one_block = chunks <= kPanelChunks;
  float* const all_y = one_block ? scratch.y : scratch.lanes + kMaxPanelRows * kMaxTileTokens * kChunk;
  for (int64_t begin = 0; begin < chunks; begin += kPanelChunks) {
    Block block{begin, std::min(kPanelChunks, chunks - begin), begin + kPanelChunks >= chunks, false};
    WithRow(m, [&]<class Row>() HWY_ATTR {
      block.even_odd = Row::kEvenOdd;
      PackPanelOf<Row>(rows, block, scratch.rows, scratch.panel);
    });
    for (int64_t token = 0; token < tokens; token += kTileTokens) {
      const int64_t count = std::min<int64_t>(kTileTokens, tokens - token);
      float* const y = all_y + (one_block ? 0 : token * quads * kTileRows);
      MultiplyTileOf<kTileTokens>(count, packed + token * chunks * kChunk, chunks, block, quads, scratch, y, x_ahead, ahead);
      if (block.last) done(context, {token, count, quads * kTileRows, y});
    }
  }
}

}  // namespace
}  // namespace lime::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lime::cpu {

HWY_EXPORT(TileTokensImpl);
HWY_EXPORT(PackTileImpl);
HWY_EXPORT(MultiplyPanelImpl);

int64_t TileTokens() {
  return HWY_DYNAMIC_DISPATCH(TileTokensImpl)();
}

void PackTile(const Activations& x, int64_t tile, float* packed) {
  HWY_DYNAMIC_DISPATCH(PackTileImpl)(x, tile, packed);
}

void MultiplyPanel(const RowRange& rows, const float* packed, int64_t tokens, const ThreadScratch& scratch,
                   void (*done)(void* context, const TileResult& result), void* context) {
  HWY_DYNAMIC_DISPATCH(MultiplyPanelImpl)(rows, packed, tokens, scratch, done, context);
}

}  // namespace lime::cpu
#endif  // HWY_ONCE
