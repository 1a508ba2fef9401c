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

// 32 elements of x, of which there are `count`, in the lanes' order.
template <typename T>
HWY_INLINE void LoadChunk(const T* x, int64_t count, LaneOrder order, LaneVec (&lanes)[kPlanes]) {
  T padded[kChunk] = {};
  if (count < kChunk) {
    std::memcpy(padded, x, count * sizeof(T));
    x = padded;
  }
  LIME_UNROLL for (int p = 0; p < kPlanes; ++p) lanes[p] = LoadVec(x + p * kVecLanes);
  if (order == LaneOrder::kNatural) return;
  alignas(64) float natural[kChunk], even_odd[kChunk];
  LIME_UNROLL for (int p = 0; p < kPlanes; ++p) StoreVec(lanes[p], natural + p * kVecLanes);
  for (int i = 0; i < kChunk / 2; ++i) {
    even_odd[i] = natural[2 * i];
    even_odd[i + kChunk / 2] = natural[2 * i + 1];
  }
  LIME_UNROLL for (int p = 0; p < kPlanes; ++p) lanes[p] = LoadVec(even_odd + p * kVecLanes);
}

void PackRowsImpl(const Activations& x, float* packed) {
  WithWorkingType(x.dtype, [&](auto type) HWY_ATTR {
    const auto* data = static_cast<const decltype(type)*>(x.data);
    for (int64_t t = 0; t < x.tokens; ++t) {
      for (int64_t k = 0; k < x.cols; k += kChunk) {
        LaneVec lanes[kPlanes];
        LoadChunk(data + t * x.stride + k, x.cols - k, x.order, lanes);
        LIME_UNROLL for (int p = 0; p < kPlanes; ++p) StoreVec(lanes[p], packed + t * x.chunks() * kChunk + k + p * kVecLanes);
      }
    }
  });
}

// Dot products of kRows rows with kTokens rows of x, in one pass over the weights; y[token * y_stride + row].
template <int kTokens, int kRows, class Row>
HWY_INLINE void Dot(const Row (&rows)[kRows], const float* x, int64_t chunks, float* y, int64_t y_stride) {
  LaneVec acc[kRows][kTokens][kPlanes];
  LIME_UNROLL for (int i = 0; i < kRows * kTokens * kPlanes; ++i) {
    acc[i / (kTokens * kPlanes)][i / kPlanes % kTokens][i % kPlanes] = hn::Zero(LaneTag());
  }
  LaneVec w[kRows][kPlanes];
  const auto add = [&](int64_t chunk) HWY_ATTR {
    LIME_UNROLL for (int t = 0; t < kTokens; ++t) {
      LIME_UNROLL for (int p = 0; p < kPlanes; ++p) {
        const LaneVec token = LoadVec(x + (t * chunks + chunk) * kChunk + p * kVecLanes);
        LIME_UNROLL for (int r = 0; r < kRows; ++r) acc[r][t][p] = FusedMulAdd(w[r][p], token, acc[r][t][p]);
      }
    }
  };
  const char* ahead = rows[0].bytes() + kPrefetchBytes;
  const int64_t full = rows[0].full_chunks();
  for (int64_t c = 0; c < full; ++c) {
    LIME_UNROLL for (int b = 0; b < kRows * Row::kChunkBytes; b += 64) hwy::Prefetch(ahead + b);
    ahead += kRows * Row::kChunkBytes;
    LIME_UNROLL for (int r = 0; r < kRows; ++r) rows[r].Load(c, w[r]);
    add(c);
  }
  for (int64_t c = full; c < chunks; ++c) {
    LIME_UNROLL for (int r = 0; r < kRows; ++r) rows[r].LoadTail(c, w[r]);
    add(c);
  }
  LIME_UNROLL for (int r = 0; r < kRows; ++r) {
    LIME_UNROLL for (int t = 0; t < kTokens; ++t) y[t * y_stride + r] = SumLanes(FoldLanes(acc[r][t]));
  }
}

// Two rows share the loads of x and overlap the latency of their sums. One row of dense weights and one token is a single stream, which
// memory likes best.
template <class Row, int kTokens>
constexpr bool kPairRows = (kTokens > 1 || Row::kPacked) && kTokens* kPlanes * 2 <= (kVecLanes == 8 ? 8 : 16);

// The tokens from `t` on that fill whole groups of kTokens.
template <int kTokens, int kRows, class Row>
HWY_INLINE void DotTokens(const Row (&rows)[kRows], const float* x, int64_t chunks, int64_t tokens, float* y, int64_t y_stride,
                          int64_t& t) {
  for (; t + kTokens <= tokens; t += kTokens) {
    const float* x_t = x + t * chunks * kChunk;
    float* y_t = y + t * y_stride;
    if constexpr (kRows == 1 || kPairRows<Row, kTokens>) {
      Dot<kTokens>(rows, x_t, chunks, y_t, y_stride);
    } else {
      for (int r = 0; r < kRows; ++r) {
        const Row row[1] = {rows[r]};
        Dot<kTokens>(row, x_t, chunks, y_t + r, y_stride);
      }
    }
  }
}

template <int kRows, class Row>
void DotAllTokens(const Row (&rows)[kRows], const float* x, int64_t chunks, int64_t tokens, float* y, int64_t y_stride) {
  int64_t t = 0;
  if constexpr (kDotTokens >= 4) DotTokens<4>(rows, x, chunks, tokens, y, y_stride, t);
  if constexpr (kDotTokens >= 4) DotTokens<3>(rows, x, chunks, tokens, y, y_stride, t);
  DotTokens<2>(rows, x, chunks, tokens, y, y_stride, t);
  DotTokens<1>(rows, x, chunks, tokens, y, y_stride, t);
}

template <class Row>
void DotRowsOf(const RowRange& rows, const float* x, int64_t tokens, const ThreadScratch& scratch) {
  const Matrix& m = *rows.matrix;
  const int64_t chunks = (m.cols + kChunk - 1) / kChunk;
  const auto row = [&](int64_t r) HWY_ATTR { return Row(m, rows.begin + r, r % kPreparedRows, scratch.rows); };
  for (int64_t r = 0; r < rows.count; r += 2) {
    if (r % kPreparedRows == 0) Row::Prepare(m, rows.begin + r, std::min<int64_t>(kPreparedRows, rows.count - r), scratch.rows);
    if (r + 1 < rows.count) {
      const Row pair[2] = {row(r), row(r + 1)};
      DotAllTokens(pair, x, chunks, tokens, scratch.y + r, rows.count);
    } else {
      const Row single[1] = {row(r)};
      DotAllTokens(single, x, chunks, tokens, scratch.y + r, rows.count);
    }
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
        LaneVec lanes[kPlanes];
        LoadChunk(row + c * kChunk, x.cols - c * kChunk, x.order, lanes);
        float* out = packed + (c * kTileTokens + i) * kVecLanes;
        LIME_UNROLL for (int p = 0; p < kPlanes; ++p) StoreVec(lanes[p], out + p * plane);
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
