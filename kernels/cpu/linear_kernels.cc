#include "kernels/cpu/linear_kernels.h"

#include <algorithm>

#include "kernels/cpu/hwy_targets.h"
#include "planner/base/check.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/linear_kernels.cc"
#include <hwy/cache_control.h>
#include <hwy/foreach_target.h>  // IWYU pragma: keep

#include "kernels/cpu/linear_rows-inl.h"

HWY_BEFORE_NAMESPACE();
namespace lime::cpu::HWY_NAMESPACE {
namespace {

// What 16 or 32 vector registers hold: accumulators, one row's (or column's) operands, and one operand of the other side.
constexpr int kDotTokens = kPlanes == 2 ? 4 : 2;
constexpr int kTileTokens = kVecLanes == 8 ? 3 : kMaxTileTokens;
constexpr int kTileRows = 4;
// Chunks of one plane that a tile runs through before the next rows: the tile's x stays in L1.
constexpr int64_t kBlockChunks = 32;
// Steps that a tile asks for its weights, which lie in L2, ahead of their use.
constexpr int64_t kStepsAhead = 4;
// From this many tokens on a panel brings the next x near while it computes; below, the next weights.
constexpr int64_t kManyTokens = 64;
// Bytes that a dot product asks for ahead of its use: beyond the end of a 4 KiB page the hardware does not.
constexpr int64_t kPrefetchBytes = 2048;

// Calls fn(row reader) for the row of the matrix.
template <typename Fn>
HWY_INLINE void WithRow(const Matrix& m, Fn&& fn) {
  if (m.dtype != DType::kU32) {
    WithWorkingType(m.dtype, [&](auto type) HWY_ATTR { fn.template operator()<DenseRow<decltype(type)>>(); });
    return;
  }
  switch (m.bits) {
    case 3:
      return fn.template operator()<PackedRow<3>>();
    case 4:
      return fn.template operator()<PackedRow<4>>();
    case 6:
      return fn.template operator()<PackedRow<6>>();
    default:
      return fn.template operator()<PackedRow<8>>();
  }
}

// ---- GEMV

template <typename T>
void PackRowOf(const T* x, int64_t cols, float* packed) {
  const int64_t full = cols / kVecLanes * kVecLanes;
  for (int64_t k = 0; k < full; k += kVecLanes) StoreVec(LoadVec(x + k), packed + k);
  const int64_t padded = (cols + kChunk - 1) / kChunk * kChunk;
  for (int64_t k = full; k < padded; ++k) packed[k] = k < cols ? ToFloat(x[k]) : 0.0f;
}

void PackRowsImpl(const Activations& x, float* packed) {
  WithWorkingType(x.dtype, [&](auto type) HWY_ATTR {
    const auto* data = static_cast<const decltype(type)*>(x.data);
    for (int64_t t = 0; t < x.tokens; ++t) PackRowOf(data + t * x.stride, x.cols, packed + t * x.chunks() * kChunk);
  });
}

// Dot products of one row with kTokens rows of x, in one pass over the weights.
template <int kTokens, class Row>
HWY_INLINE void DotRow(const Row& row, const float* x, int64_t chunks, float* y, int64_t y_stride) {
  LaneVec acc[kTokens][kPlanes];
  LIME_UNROLL for (int t = 0; t < kTokens; ++t) {
    LIME_UNROLL for (int p = 0; p < kPlanes; ++p) acc[t][p] = hn::Zero(LaneTag());
  }
  const auto add = [&](int64_t chunk, LaneVec(&w)[kPlanes]) HWY_ATTR {
    LIME_UNROLL for (int t = 0; t < kTokens; ++t) {
      LIME_UNROLL for (int p = 0; p < kPlanes; ++p) {
        acc[t][p] = FusedMulAdd(w[p], LoadVec(x + (t * chunks + chunk) * kChunk + p * kVecLanes), acc[t][p]);
      }
    }
  };
  LaneVec w[kPlanes];
  const char* ahead = row.bytes() + kPrefetchBytes;
  const int64_t full = row.full_chunks();
  for (int64_t c = 0; c < full; ++c) {
    LIME_UNROLL for (int b = 0; b < Row::kChunkBytes; b += 64) hwy::Prefetch(ahead + b);
    ahead += Row::kChunkBytes;
    row.Load(c, w);
    add(c, w);
  }
  for (int64_t c = full; c < chunks; ++c) {
    row.LoadTail(c, w);
    add(c, w);
  }
  LIME_UNROLL for (int t = 0; t < kTokens; ++t) y[t * y_stride] = SumLanes(FoldLanes(acc[t]));
}

template <class Row>
void DotRowsOf(const RowRange& rows, const float* x, int64_t tokens, const ThreadScratch& scratch) {
  const int64_t chunks = (rows.matrix->cols + kChunk - 1) / kChunk;
  for (int64_t r = 0; r < rows.count; ++r) {
    if (r % kPreparedRows == 0) Row::Prepare(*rows.matrix, rows.begin + r, std::min<int64_t>(kPreparedRows, rows.count - r), scratch.rows);
    const Row row(*rows.matrix, rows.begin + r, r % kPreparedRows, scratch.rows);
    int64_t t = 0;
    const auto dot = [&]<int kTokens>() HWY_ATTR {
      for (; t + kTokens <= tokens; t += kTokens) {
        DotRow<kTokens>(row, x + t * chunks * kChunk, chunks, scratch.y + t * rows.count + r, rows.count);
      }
    };
    if constexpr (kDotTokens >= 4) dot.template operator()<4>();
    if constexpr (kDotTokens >= 4) dot.template operator()<3>();
    dot.template operator()<2>();
    dot.template operator()<1>();
  }
}

void DotRowsImpl(const RowRange& rows, const float* x, int64_t tokens, const ThreadScratch& scratch) {
  WithRow(*rows.matrix, [&]<class Row>() HWY_ATTR { DotRowsOf<Row>(rows, x, tokens, scratch); });
}

// ---- GEMM

int64_t TileTokensImpl() {
  return kTileTokens;
}

void PackTileImpl(const Activations& x, int64_t tile, float* packed) {
  const int64_t chunks = x.chunks(), plane = chunks * kTileTokens * kVecLanes;
  WithWorkingType(x.dtype, [&](auto type) HWY_ATTR {
    using T = decltype(type);
    for (int64_t i = 0; i < kTileTokens; ++i) {
      const int64_t token = std::min(tile * kTileTokens + i, x.tokens - 1);  // a tile's missing tokens repeat the last one
      const T* row = static_cast<const T*>(x.data) + token * x.stride;
      for (int64_t c = 0; c < chunks; ++c) {
        const T* in = row + c * kChunk;
        T padded[kChunk] = {};
        if ((c + 1) * kChunk > x.cols) {
          std::memcpy(padded, in, (x.cols - c * kChunk) * sizeof(T));
          in = padded;
        }
        float* out = packed + (c * kTileTokens + i) * kVecLanes;
        LIME_UNROLL for (int p = 0; p < kPlanes; ++p) StoreVec(LoadVec(in + p * kVecLanes), out + p * plane);
      }
    }
  });
}

// Rows to fp32: [quad of rows][plane][chunk][row][lane]; rows that the last quad lacks are zero.
template <class Row>
void PackPanelOf(const RowRange& rows, float* row_scratch, float* panel) {
  const int64_t chunks = (rows.matrix->cols + kChunk - 1) / kChunk, plane = chunks * kTileRows * kVecLanes;
  for (int64_t r = 0; r < (rows.count + kTileRows - 1) / kTileRows * kTileRows; ++r) {
    float* out = panel + r / kTileRows * kPlanes * plane + r % kTileRows * kVecLanes;
    const auto store = [&](LaneVec(&w)[kPlanes]) HWY_ATTR {
      LIME_UNROLL for (int p = 0; p < kPlanes; ++p) StoreVec(w[p], out + p * plane);
      out += kTileRows * kVecLanes;
    };
    LaneVec w[kPlanes];
    if (r >= rows.count) {
      LIME_UNROLL for (int p = 0; p < kPlanes; ++p) w[p] = hn::Zero(LaneTag());
      for (int64_t c = 0; c < chunks; ++c) store(w);
      continue;
    }
    if (r % kPreparedRows == 0) Row::Prepare(*rows.matrix, rows.begin + r, std::min<int64_t>(kPreparedRows, rows.count - r), row_scratch);
    const Row row(*rows.matrix, rows.begin + r, r % kPreparedRows, row_scratch);
    const int64_t full = row.full_chunks();
    for (int64_t c = 0; c < full; ++c) {
      row.Load(c, w);
      store(w);
    }
    for (int64_t c = full; c < chunks; ++c) {
      row.LoadTail(c, w);
      store(w);
    }
  }
}

// What a tile brings near while it computes: one address per step.
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
  for (int64_t s = 0; s < steps; ++s) {
    __builtin_prefetch(near, 0, 2);
    near += ahead.stride;
    LaneVec row[kTileRows];
    LIME_UNROLL for (int r = 0; r < kTileRows; ++r) row[r] = LoadVec(w + r * kVecLanes);
    LIME_UNROLL for (int t = 0; t < kTokens; ++t) {
      const LaneVec token = LoadVec(x + t * kVecLanes);
      if (t < kTileRows) hwy::Prefetch(w + ((kStepsAhead * kTileRows) + t) * kVecLanes);
      LIME_UNROLL for (int r = 0; r < kTileRows; ++r) acc[r][t] = FusedMulAdd(row[r], token, acc[r][t]);
    }
    x += kTileTokens * kVecLanes;
    w += kTileRows * kVecLanes;
  }
  ahead.p = near;
  LIME_UNROLL for (int r = 0; r < kTileRows; ++r) {
    LIME_UNROLL for (int t = 0; t < kTokens; ++t) StoreVec(acc[r][t], lanes + (r * kTileTokens + t) * kVecLanes);
  }
}

// Adds up the lanes [plane][row][token] of four rows; y[token * stride + row].
HWY_INLINE void SumTile(const float* lanes, int64_t tokens, float* y, int64_t stride) {
  constexpr int64_t kPlane = kTileRows * kTileTokens * kVecLanes;
  for (int64_t t = 0; t < tokens; ++t) {
    Quad sum[kTileRows];
    LIME_UNROLL for (int r = 0; r < kTileRows; ++r) {
      LaneVec v[kPlanes];
      LIME_UNROLL for (int p = 0; p < kPlanes; ++p) v[p] = LoadVec(lanes + p * kPlane + (r * kTileTokens + t) * kVecLanes);
      sum[r] = FoldLanes(v);
    }
    SumLanes(sum, y + t * stride);
  }
}

// One tile of tokens against the whole panel.
template <int kTokens>
void MultiplyTileWithPanel(const float* x, int64_t chunks, int64_t quads, const ThreadScratch& scratch, bool x_ahead, Ahead& ahead) {
  constexpr int64_t kTileLanes = kTileRows * kTileTokens * kVecLanes;
  for (int64_t p = 0; p < kPlanes; ++p) {
    const float* x_plane = x + p * chunks * kTileTokens * kVecLanes;
    const float* w_plane = scratch.panel + p * chunks * kTileRows * kVecLanes;
    for (int64_t c = 0; c < chunks; c += kBlockChunks) {
      const int64_t steps = std::min(kBlockChunks, chunks - c);
      if (x_ahead) ahead.p = reinterpret_cast<const char*>(x_plane + (c + steps) * kTileTokens * kVecLanes);
      for (int64_t q = 0; q < quads; ++q) {
        MultiplyTile<kTokens>(x_plane + c * kTileTokens * kVecLanes, w_plane + (q * kPlanes * chunks + c) * kTileRows * kVecLanes, steps,
                              c == 0, scratch.lanes + (q * kPlanes + p) * kTileLanes, ahead);
      }
    }
  }
  for (int64_t q = 0; q < quads; ++q) {
    SumTile(scratch.lanes + q * kPlanes * kTileLanes, kTokens, scratch.y + q * kTileRows, quads * kTileRows);
  }
}

template <int kTokens>
void MultiplyTileOf(int64_t tokens, const float* x, int64_t chunks, int64_t quads, const ThreadScratch& scratch, bool x_ahead,
                    Ahead& ahead) {
  if (tokens >= kTokens) return MultiplyTileWithPanel<kTokens>(x, chunks, quads, scratch, x_ahead, ahead);
  if constexpr (kTokens > 1) MultiplyTileOf<kTokens - 1>(tokens, x, chunks, quads, scratch, x_ahead, ahead);
}

void MultiplyPanelImpl(const RowRange& rows, const float* packed, int64_t tokens, const ThreadScratch& scratch,
                       void (*done)(void*, const TileResult&), void* context) {
  const Matrix& m = *rows.matrix;
  WithRow(m, [&]<class Row>() HWY_ATTR { PackPanelOf<Row>(rows, scratch.rows, scratch.panel); });
  const int64_t chunks = (m.cols + kChunk - 1) / kChunk, quads = (rows.count + kTileRows - 1) / kTileRows;
  const int64_t tiles = (tokens + kTileTokens - 1) / kTileTokens;
  const bool x_ahead = tokens >= kManyTokens;
  const char* next_rows = static_cast<const char*>(m.data) + (rows.begin + rows.count) * m.RowBytes();
  const int64_t next_bytes = std::min(rows.count, m.rows - rows.begin - rows.count) * m.RowBytes();
  Ahead ahead{.p = next_rows, .stride = next_bytes / (tiles * quads * kPlanes * chunks)};
  if (x_ahead) ahead.stride = kTileTokens * kVecLanes * static_cast<int64_t>(sizeof(float)) / quads;
  if (next_bytes == 0 && !x_ahead) ahead = {.p = reinterpret_cast<const char*>(scratch.panel), .stride = 0};
  for (int64_t token = 0; token < tokens; token += kTileTokens) {
    const int64_t count = std::min<int64_t>(kTileTokens, tokens - token);
    MultiplyTileOf<kTileTokens>(count, packed + token * chunks * kChunk, chunks, quads, scratch, x_ahead, ahead);
    done(context, {token, count, quads * kTileRows, scratch.y});
  }
}

// ---- Results

template <typename T>
void FinishRowsOf(const LinearTask& task, int64_t token, int64_t row, int64_t count, const float* y) {
  const T* bias = task.bias == nullptr ? nullptr : static_cast<const T*>(task.bias) + row;
  float* out = task.out == nullptr ? nullptr : task.out + token * task.out_stride + row;
  T* add_to = task.add_to == nullptr ? nullptr : static_cast<T*>(task.add_to) + token * task.out_stride + row;
  int64_t i = 0;
  for (; i + kVecLanes <= count; i += kVecLanes) {
    LaneVec v = LoadVec(y + i);
    if (bias != nullptr) v = hn::Add(v, LoadVec(bias + i));
    if (out != nullptr) StoreVec(v, out + i);
    if (add_to != nullptr) StoreVec(hn::Add(LoadVec(add_to + i), v), add_to + i);
  }
  for (; i < count; ++i) {
    const float v = bias == nullptr ? y[i] : y[i] + ToFloat(bias[i]);
    if (out != nullptr) out[i] = v;
    if (add_to != nullptr) add_to[i] = FromFloat<T>(ToFloat(add_to[i]) + v);
  }
}

void FinishRowsImpl(const LinearTask& task, DType x_dtype, int64_t token, int64_t row, int64_t count, const float* y) {
  WithWorkingType(x_dtype, [&](auto type) HWY_ATTR { FinishRowsOf<decltype(type)>(task, token, row, count, y); });
}

const char* TargetNameImpl() {
  return hwy::TargetName(HWY_TARGET);
}

}  // namespace
}  // namespace lime::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lime::cpu {

HWY_EXPORT(PackRowsImpl);
HWY_EXPORT(DotRowsImpl);
HWY_EXPORT(TileTokensImpl);
HWY_EXPORT(PackTileImpl);
HWY_EXPORT(MultiplyPanelImpl);
HWY_EXPORT(FinishRowsImpl);
HWY_EXPORT(TargetNameImpl);

void PackRows(const Activations& x, float* packed) {
  HWY_DYNAMIC_DISPATCH(PackRowsImpl)(x, packed);
}

void DotRows(const RowRange& rows, const float* packed, int64_t tokens, const ThreadScratch& scratch) {
  HWY_DYNAMIC_DISPATCH(DotRowsImpl)(rows, packed, tokens, scratch);
}

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

void FinishRows(const LinearTask& task, DType x_dtype, int64_t token, int64_t row, int64_t count, const float* y) {
  HWY_DYNAMIC_DISPATCH(FinishRowsImpl)(task, x_dtype, token, row, count, y);
}

const char* TargetName() {
  return HWY_DYNAMIC_DISPATCH(TargetNameImpl)();
}

}  // namespace lime::cpu
#endif  // HWY_ONCE
