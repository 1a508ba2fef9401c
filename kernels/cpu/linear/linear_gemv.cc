#include <algorithm>
#include <bit>

#include "kernels/cpu/base/hwy_targets.h"
#include "kernels/cpu/linear/linear_kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/linear/linear_gemv.cc"
#include <hwy/cache_control.h>
#include <hwy/foreach_target.h>  // IWYU pragma: keep

#include "kernels/cpu/linear/linear_rows-inl.h"

HWY_BEFORE_NAMESPACE();
namespace lime::cpu::HWY_NAMESPACE {
namespace {

// Tokens of one pass. Sized for 16 or 32 vector registers: the accumulators, one row's operands,
// and one operand of the other side.
constexpr int kDotTokens = kPlanes == 2 ? 4 : 2;
// Element of packed x for LaneOrder::kWords. With narrow registers it costs too much to widen x
// again for every row.
using Word = std::conditional_t<kPlanes == 2, BF16, float>;

// Chunks that a set of rows processes before the next ones. x of a pass's tokens takes half of L1,
// which leaves its line buffers to the weights. It is a power of two, so blocks neither cut a group
// nor cross the end of a sum.
template <class X>
int64_t BlockChunks(int64_t tokens) {
  constexpr int64_t kTokenChunks = (16 << 10) / (kChunk * sizeof(X));
  return std::min<int64_t>(kSumChunks, std::bit_floor(static_cast<uint64_t>(kTokenChunks / std::min<int64_t>(tokens, kDotTokens))));
}
// How far ahead the dot products of one token prefetch, in bytes; the hardware does not prefetch
// beyond the end of a 4 KiB page. For rows that are read side by side, the prefetch follows the
// order of memory, so the time for the last row's bytes is only a fraction.
template <class Row>
constexpr int64_t kPrefetchBytes = !Row::kPacked           ? 2048
                                   : Row::kRowsAtOnce == 1 ? 4096
                                                           : 8192;

// A pass of several tokens prefetches this many rows ahead: few enough to stay in L1 besides x.
constexpr int64_t kRowsAhead = 2;

// The memory of `token` in its packed pass; `width` gets the number of tokens of that pass.
template <class X>
HWY_INLINE X* PackedToken(const Activations& x, int64_t token, int64_t& width, X* packed) {
  const int64_t first = token / kDotTokens * kDotTokens;
  width = std::min<int64_t>(kDotTokens, x.tokens - first);
  return packed + (first * x.chunks() + token - first) * kChunk;
}

[[maybe_unused]] void PackWords(const Activations& x, BF16* packed) {
  for (int64_t t = 0; t < x.tokens; ++t) {
    int64_t width;
    BF16* out = PackedToken(x, t, width, packed);
    const BF16* row = static_cast<const BF16*>(x.data) + t * x.stride;
    for (int64_t k = 0; k < x.cols; k += kChunk, out += width * kChunk) {
      const int64_t count = std::min<int64_t>(kChunk, x.cols - k);
      std::memcpy(out, row + k, count * sizeof(BF16));
      std::fill(out + count, out + kChunk, BF16{});
    }
  }
}

// Packed x: [pass][chunk][token of the pass][lane].
void PackRowsImpl(const Activations& x, float* packed) {
  if constexpr (std::is_same_v<Word, BF16>) {
    if (x.order == LaneOrder::kWords) return PackWords(x, reinterpret_cast<BF16*>(packed));
  }
  const LaneOrder order = x.order == LaneOrder::kWords ? LaneOrder::kEvenOdd : x.order;
  WithWorkingType(x.dtype, [&](auto type) HWY_ATTR {
    const auto* data = static_cast<const decltype(type)*>(x.data);
    for (int64_t t = 0; t < x.tokens; ++t) {
      int64_t width;
      float* out = PackedToken(x, t, width, packed);
      for (int64_t k = 0; k < x.cols; k += kChunk, out += width * kChunk) {
        LaneVec lanes[kPlanes];
        LoadChunk(data + t * x.stride + k, x.cols - k, order, lanes);
        LIME_UNROLL for (int p = 0; p < kPlanes; ++p) StoreVec(lanes[p], out + p * kVecLanes);
      }
    }
  });
}

// One block of the dot products of one or several rows with the tokens of a pass.
struct Block {
  const void* x;  // [chunk][token][lane]
  ChunkRange range;
  // First and last of the blocks whose lanes are added up together.
  bool first, last;
  float* lanes;  // accumulators kept between two blocks
  // y[token * y_stride + row], written if `last`: the rows' first sum sets it, later sums are
  // added.
  float* y;
  bool first_sum;
  int64_t y_stride;
  // Prefetches at the same time `ahead_step` bytes per unit from `ahead`, and for each further row
  // `ahead_row` bytes behind that.
  const char* ahead;
  int64_t ahead_step, ahead_row;
};

// Loads a chunk of packed x, which is in the lanes' order already.
HWY_INLINE void LoadPacked(const float* x, LaneVec (&lanes)[kPlanes]) {
  LIME_UNROLL for (int p = 0; p < kPlanes; ++p) lanes[p] = LoadVec(x + p * kVecLanes);
}
[[maybe_unused]] HWY_INLINE void LoadPacked(const BF16* x, LaneVec (&lanes)[kPlanes]) {
  LoadEvenOdd(x, lanes);
}

template <int kTokens, class X, int kRows, class Row>
HWY_INLINE void Dot(const Row (&from)[kRows], const Block& block) {
  LaneVec acc[kRows][kTokens][kPlanes];
  const auto each = [&](auto fn) HWY_ATTR {
    LIME_UNROLL for (int i = 0; i < kRows * kTokens * kPlanes; ++i) {
      fn(i, acc[i / (kTokens * kPlanes)][i / kPlanes % kTokens][i % kPlanes]);
    }
  };
  if (block.first) {
    each([](int, LaneVec& v) HWY_ATTR { v = hn::Zero(LaneTag()); });
  } else {
    each([&](int i, LaneVec& v) HWY_ATTR { v = LoadVec(block.lanes + i * kVecLanes); });
  }
  Row rows[kRows];
  LIME_UNROLL for (int r = 0; r < kRows; ++r) rows[r] = from[r];
  const X* x = static_cast<const X*>(block.x);
  const char* ahead = block.ahead;
  const int64_t ahead_step = block.ahead_step, ahead_row = block.ahead_row;
  const auto prefetch = [&] HWY_ATTR {
    // With one token, the prefetch takes the rows of a set as one run of memory.
    constexpr int kRuns = kTokens == 1 ? 1 : kRows;  // NOLINT(bugprone-branch-clone): kRows may be 1
    constexpr int kRunBytes = Row::kScaleChunks * Row::kChunkBytes * kRows / kRuns;
    LIME_UNROLL for (int r = 0; r < kRuns; ++r) {
      LIME_UNROLL for (int b = 0; b < kRunBytes; b += 64) __builtin_prefetch(ahead + r * ahead_row + b);
    }
    ahead += ahead_step;
  };
  // clang does not inline a loop of two units of two chunks: the accumulators would go through memory.
  constexpr int kUnits = kTokens == 1 && Row::kPacked && Row::kScaleChunks == 1 && kPlanes == 2 ? 2 : 1;
  ForEachChunk<kUnits>(rows, block.range, prefetch, [&](const LaneVec(&w)[kRows][kPlanes]) HWY_ATTR {
    LIME_UNROLL for (int t = 0; t < kTokens; ++t) {
      LaneVec token[kPlanes];
      LoadPacked(x + t * kChunk, token);
      LIME_UNROLL for (int p = 0; p < kPlanes; ++p) {
        LIME_UNROLL for (int r = 0; r < kRows; ++r) acc[r][t][p] = FusedMulAdd(w[r][p], token[p], acc[r][t][p]);
      }
    }
    x += kTokens * kChunk;
  });
  if (!block.last) return each([&](int i, LaneVec& v) HWY_ATTR { StoreVec(v, block.lanes + i * kVecLanes); });
  if constexpr (kRows == 4 && kTokens == 1) {
    LaneVec lanes[4][kPlanes];
    LIME_UNROLL for (int i = 0; i < 4 * kPlanes; ++i) lanes[i / kPlanes][i % kPlanes] = acc[i / kPlanes][0][i % kPlanes];
    float sums[4];
    SumLanes(lanes, Row::kEvenOdd, sums);
    LIME_UNROLL for (int r = 0; r < 4; ++r) block.y[r] = block.first_sum ? sums[r] : block.y[r] + sums[r];
    return;
  }
  LIME_UNROLL for (int r = 0; r < kRows; ++r) {
    float sums[kTokens];
    if constexpr (kTokens == 4) {
      SumLanes(acc[r], Row::kEvenOdd, sums);
    } else {
      LIME_UNROLL for (int t = 0; t < kTokens; ++t) sums[t] = SumLanes(acc[r][t], Row::kEvenOdd);
    }
    LIME_UNROLL for (int t = 0; t < kTokens; ++t) {
      float& y = block.y[t * block.y_stride + r];
      y = block.first_sum ? sums[t] : y + sums[t];
    }
  }
}

// For several tokens, which need all registers.
template <int kTokens, class X, int kRows, class Row>
HWY_NOINLINE void DotAlone(const Row (&rows)[kRows], const Block& block) {
  Dot<kTokens, X>(rows, block);
}

template <class X, int kRows, class Row>
HWY_INLINE void DotPass(int64_t tokens, const Row (&rows)[kRows], const Block& block) {
  if constexpr (kDotTokens == 4) {
    if (tokens == 4) return DotAlone<4, X>(rows, block);
    if (tokens == 3) return DotAlone<3, X>(rows, block);
  }
  return tokens == 2 ? DotAlone<2, X>(rows, block) : DotAlone<1, X>(rows, block);
}

// One token: rows in the order of memory, kRowsAtOnce side by side. Memory is fastest with a single
// stream. But rows of few bytes would wait for the latency of their sums; side by side, they also
// share the loads of x.
template <class Row>
void DotRowsOnce(const RowRange& rows, const float* x, const ThreadScratch& scratch) {
  constexpr int kRows = Row::kRowsAtOnce;
  const Matrix& m = *rows.matrix;
  const int64_t chunks = (m.cols + kChunk - 1) / kChunk, row_bytes = m.RowBytes(), block_chunks = BlockChunks<float>(1);
  const bool has_tail = Row::HasTail(m);
  const int units_per_group_log2 = Row::UnitsPerGroupLog2(m);
  Block b{
      .lanes = scratch.lanes, .y_stride = rows.count, .ahead_step = kRows * Row::kScaleChunks * Row::kChunkBytes, .ahead_row = row_bytes};
  const auto multiply = [&](auto& readers, const char* data, float* y) HWY_ATTR {
    b.y = y;
    for (int64_t begin = 0; begin < chunks; begin += block_chunks) {
      const int64_t end = std::min(begin + block_chunks, chunks);
      b.range = {end - begin, units_per_group_log2, end == chunks && has_tail};
      b.first = begin % kSumChunks == 0;
      b.last = end % kSumChunks == 0 || end == chunks;
      b.first_sum = begin < kSumChunks;
      b.x = x + begin * kChunk;
      b.ahead = data + begin * Row::kChunkBytes + kPrefetchBytes<Row>;
      Dot<1, float>(readers, b);
      for (Row& reader : readers) reader.Skip(m, end - begin);
    }
  };
  for (int64_t set = 0; set < rows.count; set += kPreparedRows) {
    const int64_t set_rows = std::min<int64_t>(kPreparedRows, rows.count - set), first = rows.begin + set;
    Row::Prepare(m, first, set_rows, scratch.rows);
    const char* data = static_cast<const char*>(m.data) + first * row_bytes;
    for (int64_t row = 0; row < set_rows; row += kRows, data += kRows * row_bytes) {
      for (int i = 0; i < kRows; ++i) Row::PrefetchPrepared(m, first + kPreparedRows + row + i);
      if (row + kRows <= set_rows) {
        Row readers[kRows];
        LIME_UNROLL for (int i = 0; i < kRows; ++i) readers[i] = Row(m, first + row + i, 0, row + i, scratch.rows);
        multiply(readers, data, scratch.y + set + row);
        continue;
      }
      for (int64_t r = row; r < set_rows; ++r) {
        Row readers[1] = {Row(m, first + r, 0, r, scratch.rows)};
        multiply(readers, data + (r - row) * row_bytes, scratch.y + set + r);
      }
    }
  }
}

// Several tokens: a set of rows processes a block of x before the next block. Two rows share the
// loads of x and overlap the latency of their sums, if the registers hold both.
template <class Row, class X>
void DotRowsOf(const RowRange& rows, const X* x, int64_t tokens, const ThreadScratch& scratch) {
  constexpr int kRows = kPlanes == 2 && !std::is_same_v<X, BF16> ? 2 : 1;
  const Matrix& m = *rows.matrix;
  const int64_t chunks = (m.cols + kChunk - 1) / kChunk, row_bytes = m.RowBytes(), unit_bytes = Row::kScaleChunks * Row::kChunkBytes;
  const int64_t passes = (tokens + kDotTokens - 1) / kDotTokens, block_chunks = BlockChunks<X>(tokens);
  Block b{.y_stride = rows.count, .ahead_step = unit_bytes / passes, .ahead_row = row_bytes};

  // Multiplies row `row` of the set (with `pair` also `row` + 1) with one pass's tokens and one
  // block's chunks.
  const auto multiply = [&](int64_t set, int64_t row, bool pair, int64_t begin, int64_t token) HWY_ATTR {
    const int64_t width = std::min<int64_t>(kDotTokens, tokens - token), end = std::min(begin + block_chunks, chunks);
    b.range = {end - begin, Row::UnitsPerGroupLog2(m), end == chunks && Row::HasTail(m)};
    b.first = begin % kSumChunks == 0;
    b.last = end % kSumChunks == 0 || end == chunks;
    b.first_sum = begin < kSumChunks;
    b.x = x + (token * chunks + begin * width) * kChunk;
    b.lanes = scratch.lanes + (token * kPreparedRows + row * width) * kChunk;
    b.y = scratch.y + token * rows.count + set + row;
    const auto data_at = [&](int64_t r, int64_t chunk) HWY_ATTR {
      return static_cast<const char*>(m.data) + (rows.begin + set + r) * row_bytes + chunk * Row::kChunkBytes;
    };
    if (passes == 1 && row + kRowsAhead < kPreparedRows) {
      b.ahead = data_at(row + kRowsAhead, begin);
    } else if (passes == 1) {
      b.ahead = end < chunks ? data_at(row + kRowsAhead - kPreparedRows, end) : data_at(row + kRowsAhead, 0);
    } else {
      b.ahead = (end < chunks ? data_at(row, end) : data_at(row + kPreparedRows, 0)) +
                token / kDotTokens * b.ahead_step * (block_chunks / Row::kScaleChunks);
    }
    const auto reader = [&](int64_t i) HWY_ATTR {
      if (end == chunks) Row::PrefetchPrepared(m, rows.begin + set + kPreparedRows + i);
      return Row(m, rows.begin + set + i, begin, i, scratch.rows);
    };
    if (pair) {
      const Row readers[2] = {reader(row), reader(row + 1)};
      DotPass<X>(width, readers, b);
    } else {
      const Row readers[1] = {reader(row)};
      DotPass<X>(width, readers, b);
    }
  };

  for (int64_t set = 0; set < rows.count; set += kPreparedRows) {
    const int64_t set_rows = std::min<int64_t>(kPreparedRows, rows.count - set);
    Row::Prepare(m, rows.begin + set, set_rows, scratch.rows);
    for (int64_t begin = 0; begin < chunks; begin += block_chunks) {
      for (int64_t token = 0; token < tokens; token += kDotTokens) {
        for (int64_t row = 0; row < set_rows; row += kRows) multiply(set, row, kRows == 2 && row + 1 < set_rows, begin, token);
      }
    }
  }
}

void DotRowsImpl(const RowRange& rows, const float* x, int64_t tokens, const ThreadScratch& scratch) {
  WithRow(*rows.matrix,
          [&]<class Row>() HWY_ATTR { tokens == 1 ? DotRowsOnce<Row>(rows, x, scratch) : DotRowsOf<Row>(rows, x, tokens, scratch); });
}

void DotWordsImpl(const RowRange& rows, const float* x, int64_t tokens, const ThreadScratch& scratch) {
  DotRowsOf<DenseRow<BF16>>(rows, reinterpret_cast<const Word*>(x), tokens, scratch);
}

template <typename T>
void FinishRowsOf(const LinearTask& task, int64_t token, int64_t row, int64_t count, const float* y) {
  const T* bias = task.bias == nullptr ? nullptr : static_cast<const T*>(task.bias) + row;
  float* out = task.out == nullptr ? nullptr : task.out + token * task.out_stride + row;
  T* add_to = task.add_to == nullptr ? nullptr : static_cast<T*>(task.add_to) + token * task.out_stride + row;
  const auto scale = hn::Set(LaneTag(), task.add_scale);
  // No sum is -0. So it is the same if products that are zero are left out.
  int64_t i = 0;
  for (; i + kVecLanes <= count; i += kVecLanes) {
    LaneVec v = hn::Add(LoadVec(y + i), hn::Zero(LaneTag()));
    if (bias != nullptr) v = hn::Add(v, LoadVec(bias + i));
    if (out != nullptr) StoreVec(v, out + i);
    if (add_to != nullptr) StoreVec(hn::Add(LoadVec(add_to + i), hn::Mul(v, scale)), add_to + i);
  }
  for (; i < count; ++i) {
    const float sum = y[i] + 0.0f, v = bias == nullptr ? sum : sum + ToFloat(bias[i]);
    if (out != nullptr) out[i] = v;
    if (add_to != nullptr) add_to[i] = FromFloat<T>(ToFloat(add_to[i]) + v * task.add_scale);
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
HWY_EXPORT(DotWordsImpl);
HWY_EXPORT(FinishRowsImpl);
HWY_EXPORT(TargetNameImpl);

void PackRows(const Activations& x, float* packed) {
  HWY_DYNAMIC_DISPATCH(PackRowsImpl)(x, packed);
}

void DotRows(const RowRange& rows, const float* packed, int64_t tokens, const ThreadScratch& scratch) {
  HWY_DYNAMIC_DISPATCH(DotRowsImpl)(rows, packed, tokens, scratch);
}

void DotWords(const RowRange& rows, const float* packed, int64_t tokens, const ThreadScratch& scratch) {
  HWY_DYNAMIC_DISPATCH(DotWordsImpl)(rows, packed, tokens, scratch);
}

void FinishRows(const LinearTask& task, DType x_dtype, int64_t token, int64_t row, int64_t count, const float* y) {
  HWY_DYNAMIC_DISPATCH(FinishRowsImpl)(task, x_dtype, token, row, count, y);
}

const char* TargetName() {
  return HWY_DYNAMIC_DISPATCH(TargetNameImpl)();
}

}  // namespace lime::cpu
#endif  // HWY_ONCE
