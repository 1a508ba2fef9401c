// The arithmetic of Attend for one Highway target: scores, weights and weighted values of one tile
// and piece. attention.h states the order.
#include "kernels/cpu/attention_tile.h"

#if defined(LIME_KERNELS_CPU_ATTENTION_KERNELS_INL_H_) == defined(HWY_TARGET_TOGGLE)  // NOLINT
#ifdef LIME_KERNELS_CPU_ATTENTION_KERNELS_INL_H_
#undef LIME_KERNELS_CPU_ATTENTION_KERNELS_INL_H_
#else
#define LIME_KERNELS_CPU_ATTENTION_KERNELS_INL_H_
#endif

#include <hwy/cache_control.h>

#include <algorithm>

#include "kernels/cpu/row_lanes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace lime::cpu::HWY_NAMESPACE {

inline constexpr int kPiecePages = kPiecePositions / kPagePositions;

// Accumulators of sixteen lanes that fit into registers besides the operands: 32 registers of 16
// lanes, 16 of 8, 32 of 4.
inline constexpr int kAccumulators = LIME_LANES_EMULATED ? 1 : kVecs == 1 ? 16 : 4;

// One tile and one piece. Rows are the query rows of the tile.
struct TilePiece {
  const AttentionCall* call;
  int rows;
  const float* q;        // [head_dim][kTileRows], packed
  float* weights;        // [kTileRows][kPiecePositions]: scores, then weights
  float* records;        // [rows][RecordFloats]
  int begin[kTileRows];  // positions of the piece that the row sees: [begin, end), 0 .. 256
  int end[kTileRows];
  const std::byte* k[kPiecePages];  // this kv head's part of every page that any row sees
  const std::byte* v[kPiecePages];

  float* Acc(int row) const { return records + row * call->RecordFloats() + kRecordAcc; }
};

// Scores of R rows for P pages.   q: the first row's column of the packed queries.   scores: the
// first row's scores for the first page.   next: P pages that are read after these: a
// prefetch of them begins now; a page is too short for the hardware to recognise the stream.
template <int R, int P, typename T>
HWY_INLINE void ScorePages(const float* q, const std::byte* const* pages, const std::byte* const* next, int64_t head_dim, float scale,
                           float* scores) {
  F32x16 sum[R][P];
  for (int r = 0; r < R; ++r)
    for (int p = 0; p < P; ++p) sum[r][p] = Zero();
  const T* k[P];
  const T* ahead[P];
  for (int p = 0; p < P; ++p) k[p] = reinterpret_cast<const T*>(pages[p]), ahead[p] = reinterpret_cast<const T*>(next[p]);
  for (int64_t d = 0; d < head_dim; ++d) {
    F32x16 key[P];
#pragma GCC unroll 16
    for (int p = 0; p < P; ++p) hwy::Prefetch(ahead[p] + d * kPagePositions);
#pragma GCC unroll 16
    for (int p = 0; p < P; ++p) key[p] = Load(k[p] + d * kPagePositions);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const F32x16 query = Set(q[d * kTileRows + r]);
#pragma GCC unroll 16
      for (int p = 0; p < P; ++p) sum[r][p] = MulAdd(query, key[p], sum[r][p]);
    }
  }
  for (int r = 0; r < R; ++r)
    for (int p = 0; p < P; ++p) Store(Mul(sum[r][p], Set(scale)), scores + r * kPiecePositions + p * kPagePositions);
}

template <int R, typename T>
HWY_INLINE void ScoreRows(const TilePiece& t, int row, int first_page, int end_page) {
  constexpr int kPages = std::max(1, std::min(8, kAccumulators / R));
  const int64_t head_dim = t.call->kv.head_dim;
  const float scale = t.call->shape.scale;
  float* scores = t.weights + row * kPiecePositions;
  int page = first_page;
  for (; page + kPages <= end_page; page += kPages) {
    const std::byte* const* next = page + 2 * kPages <= end_page ? t.k + page + kPages : t.v + first_page;
    ScorePages<R, kPages, T>(t.q + row, t.k + page, next, head_dim, scale, scores + page * kPagePositions);
  }
  for (; page < end_page; ++page) ScorePages<R, 1, T>(t.q + row, t.k + page, t.v + page, head_dim, scale, scores + page * kPagePositions);
}

// Turns the scores of positions [begin, end) into weights. The other positions in the same pages
// get weight 0.
HWY_INLINE void WeighRow(float* s, int begin, int end, float cap, float* max, float* sum) {
  const int first = begin / kLanes * kLanes, last = (end + kLanes - 1) / kLanes * kLanes;
  for (int p = first; cap != 0 && p < last; p += kLanes) Store(SoftCap(Load(s + p), cap), s + p);
  std::fill(s + first, s + begin, -INFINITY);
  std::fill(s + end, s + last, -INFINITY);
  F32x16 largest = Set(-INFINITY);
  for (int p = first; p < last; p += kLanes) largest = Greater(Load(s + p), largest);
  *max = ReduceMax(largest);
  const F32x16 m = Set(*max);
  F32x16 total = Zero();
  for (int p = first; p < last; p += kLanes) {
    const F32x16 w = Exp(Sub(Load(s + p), m));
    Store(w, s + p);
    total = Add(total, w);
  }
  *sum = ReduceAdd(total);
}

// Adds the weighted values of positions [begin, end) to acc[d .. d + 16 B), for R rows from `row`.
// kPartial: only the last `width` < 16 elements of the head (then B is 1).
template <int R, int B, bool kPartial, typename T>
HWY_INLINE void AddValues(const TilePiece& t, int row, int begin, int end, int64_t d, int64_t width) {
  const int64_t head_dim = t.call->ValueDim();
  const float* w = t.weights + row * kPiecePositions;
  F32x16 acc[R][B];
  for (int r = 0; r < R; ++r)
    for (int b = 0; b < B; ++b) acc[r][b] = Load(t.Acc(row + r) + d + b * kLanes);
  for (int p = begin; p < end; ++p) {
    const int64_t offset = p % kPagePositions * head_dim + d;
    const T* v = reinterpret_cast<const T*>(t.v[p / kPagePositions]) + offset;
    const T* ahead = reinterpret_cast<const T*>(t.v[std::min<int64_t>(p + kPagePositions, end - 1) / kPagePositions]) + offset;
    F32x16 value[B];
#pragma GCC unroll 8
    for (int b = 0; b < B; ++b) hwy::Prefetch(ahead + b * kLanes);
#pragma GCC unroll 8
    for (int b = 0; b < B; ++b) value[b] = kPartial ? LoadFirst(v, width) : Load(v + b * kLanes);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const F32x16 weight = Set(w[r * kPiecePositions + p]);
#pragma GCC unroll 8
      for (int b = 0; b < B; ++b) acc[r][b] = MulAdd(weight, value[b], acc[r][b]);
    }
  }
  for (int r = 0; r < R; ++r)
    for (int b = 0; b < B; ++b) Store(acc[r][b], t.Acc(row + r) + d + b * kLanes);
}

template <int R, typename T>
HWY_INLINE void AddAllValues(const TilePiece& t, int row, int begin, int end) {
  if (begin >= end) return;
  constexpr int kBlocks = std::max(1, std::min(8, kAccumulators / R));
  const int64_t head_dim = t.call->ValueDim();
  int64_t d = 0;
  for (; d + kBlocks * kLanes <= head_dim; d += kBlocks * kLanes) AddValues<R, kBlocks, false, T>(t, row, begin, end, d, 0);
  if constexpr (kBlocks > 4) {
    for (; d + 4 * kLanes <= head_dim; d += 4 * kLanes) AddValues<R, 4, false, T>(t, row, begin, end, d, 0);
  }
  for (; d + kLanes <= head_dim; d += kLanes) AddValues<R, 1, false, T>(t, row, begin, end, d, 0);
  if (d < head_dim) AddValues<R, 1, true, T>(t, row, begin, end, d, head_dim - d);
}

// Positions that all of the rows see are processed together; positions before and after them row by
// row.
template <int R, typename T>
HWY_INLINE void ValueRows(const TilePiece& t, int row) {
  const int begin = *std::max_element(t.begin + row, t.begin + row + R);
  const int end = std::max(begin, *std::min_element(t.end + row, t.end + row + R));
  for (int r = row; r < row + R; ++r) AddAllValues<1, T>(t, r, t.begin[r], std::min(begin, t.end[r]));
  AddAllValues<R, T>(t, row, begin, end);
  for (int r = row; r < row + R; ++r) AddAllValues<1, T>(t, r, std::max(end, t.begin[r]), t.end[r]);
}

// V of a page of latents: [16][dim] from [dim][16].
template <typename T>
HWY_INLINE void TransposeLatents(const T* latents, int64_t dim, T* values) {
  for (int64_t d = 0; d < dim; ++d)
    for (int64_t p = 0; p < kPagePositions; ++p) values[p * dim + d] = latents[d * kPagePositions + p];
}

// ValueRows for pages of latents, page by page.
template <int R, typename T>
void LatentRows(const TilePiece& t, int row) {
  alignas(64) T values[kPagePositions * kMaxHeadDim];
  const int64_t dim = t.call->ValueDim(), key_only = (t.call->kv.head_dim - dim) * kPagePositions;
  const int first = *std::min_element(t.begin + row, t.begin + row + R), last = *std::max_element(t.end + row, t.end + row + R);
  TilePiece one = t;
  for (int page = first / kPagePositions; page * kPagePositions < last; ++page) {
    const int begin = page * kPagePositions, end = begin + kPagePositions;
    TransposeLatents(reinterpret_cast<const T*>(t.k[page]) + key_only, dim, values);
    one.v[page] = reinterpret_cast<const std::byte*>(values);
    for (int r = row; r < row + R; ++r) one.begin[r] = std::clamp(t.begin[r], begin, end), one.end[r] = std::clamp(t.end[r], begin, end);
    ValueRows<R, T>(one, row);
  }
}

template <int R, typename T>
void RowsOfPiece(const TilePiece& t, int row) {
  const int first = *std::min_element(t.begin + row, t.begin + row + R), last = *std::max_element(t.end + row, t.end + row + R);
  ScoreRows<R, T>(t, row, first / kPagePositions, (last + kPagePositions - 1) / kPagePositions);
  for (int r = row; r < row + R; ++r) {
    float* record = t.records + r * t.call->RecordFloats();
    WeighRow(t.weights + r * kPiecePositions, t.begin[r], t.end[r], t.call->shape.cap, &record[0], &record[1]);
    std::fill(t.Acc(r), t.Acc(r) + t.call->AccWidth(), 0.0f);
  }
  t.call->kv.latent_dim > 0 ? LatentRows<R, T>(t, row) : ValueRows<R, T>(t, row);
}

// Processes rows row .. row + run - 1, or as many of them as fit into registers. Returns their
// number.
template <int R, typename T>
HWY_INLINE int FirstRows(const TilePiece& t, int row, int run) {
  if constexpr (R == 1) {
    RowsOfPiece<1, T>(t, row);
    return 1;
  } else {
    constexpr int kFewer = R > 4 ? R - 2 : R - 1;
    if (R > kAccumulators || run < R) return FirstRows<kFewer, T>(t, row, run);
    if constexpr (R <= kAccumulators) RowsOfPiece<R, T>(t, row);
    return R;
  }
}

// Computes the records of the tile's rows that see any of the piece.
template <typename T>
HWY_INLINE void ComputePiece(const TilePiece& t) {
  for (int row = 0; row < t.rows;) {
    int run = 0;  // rows from `row` that see the piece
    while (row + run < t.rows && t.begin[row + run] < t.end[row + run]) ++run;
    row += run == 0 ? 1 : FirstRows<kTileRows, T>(t, row, run);
  }
}

// Adds the record `from` of a later piece to `into`.
HWY_INLINE void MergeRecord(const float* from, float* into, int64_t acc_width) {
  const float max = from[0] > into[0] ? from[0] : into[0];
  const float into_scale = ExpOne(into[0] - max), from_scale = ExpOne(from[0] - max);
  into[0] = max;
  into[1] = into[1] * into_scale + from[1] * from_scale;
  for (int64_t d = kRecordAcc; d < kRecordAcc + acc_width; d += kLanes)
    Store(Add(Mul(Load(into + d), Set(into_scale)), Mul(Load(from + d), Set(from_scale))), into + d);
}

// The weights of a record's positions, and of the sink if there is one, added up.
HWY_INLINE float SumWithSink(const float* record, float sink) {
  return sink == -INFINITY ? record[1] : record[1] + ExpOne(sink - record[0]);
}

// sum_of_weights: SumWithSink.   gate: [head_dim] or null.
template <typename T>
HWY_INLINE void FinishRecord(const float* record, float sum_of_weights, const float* gate, int64_t head_dim, T* out) {
  const F32x16 sum = Set(sum_of_weights);
  const float* acc = record + kRecordAcc;
  for (int64_t d = 0; d < head_dim; d += kLanes) {
    F32x16 x = Div(Load(acc + d), sum);  // acc is padded to whole groups
    if (gate != nullptr) x = Mul(x, Sigmoid(LoadGroup(gate, d, head_dim)));
    StoreGroup(x, out, d, head_dim);
  }
}

}  // namespace lime::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
