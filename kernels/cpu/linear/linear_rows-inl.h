// Reads one row of weights, 32 at a time, as exact fp32: one reader for each format. Included once
// for each Highway target.
//
// A reader stands at a chunk of its row. Next(group, planes) reads it and moves on. NextTail(group,
// planes) reads the last chunk if Next would read beyond the row's bytes (HasTail). Chunks come in
// units of kScaleChunks, which share a scale. ForEachChunk does all of this.
#include "kernels/cpu/base/hwy_targets.h"

#if defined(LIME_KERNELS_CPU_LINEAR_LINEAR_ROWS_INL_H_) == defined(HWY_TARGET_TOGGLE)  // NOLINT
#ifdef LIME_KERNELS_CPU_LINEAR_LINEAR_ROWS_INL_H_
#undef LIME_KERNELS_CPU_LINEAR_LINEAR_ROWS_INL_H_
#else
#define LIME_KERNELS_CPU_LINEAR_LINEAR_ROWS_INL_H_
#endif

#include <hwy/cache_control.h>

#include <array>
#include <bit>

#include "kernels/cpu/linear/linear_lanes-inl.h"
#include "kernels/cpu/linear/linear_small_floats-inl.h"

HWY_BEFORE_NAMESPACE();
namespace lime::cpu::HWY_NAMESPACE {

// Loads 32 elements as lanes of even elements, then of odd ones: this needs half as many
// instructions.
HWY_INLINE void LoadEvenOdd(const BF16* p, LaneVec (&lanes)[kPlanes]) {
  constexpr int kHalf = kPlanes / 2;
  LIME_UNROLL for (int i = 0; i < kHalf; ++i) {
#if HWY_TARGET == HWY_SCALAR
    lanes[i] = LoadVec(p + 2 * i), lanes[i + kHalf] = LoadVec(p + 2 * i + 1);
#else
    const auto pairs =
        hn::BitCast(BitsTag(), hn::LoadU(hn::Repartition<uint8_t, LaneTag>(), reinterpret_cast<const uint8_t*>(p + 2 * i * kVecLanes)));
    lanes[i] = hn::BitCast(LaneTag(), hn::ShiftLeft<16>(pairs));
    lanes[i + kHalf] = hn::BitCast(LaneTag(), hn::And(pairs, hn::Set(BitsTag(), 0xffff0000u)));
#endif
  }
}

template <typename T>
class DenseRow {
 public:
  static constexpr bool kPacked = false;
  static constexpr bool kEvenOdd = std::is_same_v<T, BF16>;
  static constexpr int kRowsAtOnce = 1;
  static constexpr int kChunkBytes = kChunk * sizeof(T);
  static constexpr int kScaleChunks = 2;

  static void Prepare(const Matrix&, int64_t, int64_t, float*) {}
  static void PrefetchPrepared(const Matrix&, int64_t) {}
  static bool HasTail(const Matrix& m) { return m.cols % kChunk != 0; }
  static int UnitsPerGroupLog2(const Matrix&) { return 0; }

  DenseRow() = default;
  DenseRow(const Matrix& m, int64_t row, int64_t chunk, int64_t, const float*)
      : p_(static_cast<const T*>(m.data) + row * m.cols + chunk * kChunk), tail_(m.cols % kChunk) {}

  const char* bytes() const { return reinterpret_cast<const char*>(p_); }

  // Moves over chunks that a copy of the reader has read.
  HWY_INLINE void Skip(const Matrix&, int64_t chunks) { p_ += chunks * kChunk; }

  struct Group {};
  HWY_INLINE Group GroupAt(int64_t) const { return {}; }

  HWY_INLINE void Next(const Group&, LaneVec (&w)[kPlanes]) {
    LoadFrom(p_, w);
    p_ += kChunk;
  }

  HWY_INLINE void NextTail(const Group&, LaneVec (&w)[kPlanes]) {
    T padded[kChunk] = {};
    std::memcpy(padded, p_, tail_ * sizeof(T));
    LoadFrom(padded, w);
  }

 private:
  static HWY_INLINE void LoadFrom(const T* p, LaneVec (&w)[kPlanes]) {
    if constexpr (kEvenOdd) {
      LoadEvenOdd(p, w);
    } else {
      LIME_UNROLL for (int i = 0; i < kPlanes; ++i) w[i] = LoadVec(p + i * kVecLanes);
    }
  }

  const T* p_ = nullptr;
  int64_t tail_ = 0;  // elements of the last chunk if it is incomplete
};

// Says where the weights of a chunk lie in its 4 * kBits bytes. They are read as two halves of 16
// weights, each with one 16-byte load. The second load ends with the chunk. With 3 bits, both loads
// begin with the chunk and read 4 bytes too far.
template <int kBits>
struct PackedLayout {
  static constexpr int kBytes = 4 * kBits;
  static constexpr int kSecondLoad = kBytes > 16 ? kBytes - 16 : 0;
  static constexpr bool kReadsBeyond = kBytes < 16;

  // For each lane: the two bytes of its load that hold the weight, in the low half.
  alignas(64) std::array<uint8_t, 4 * kChunk> byte_index{};
  // For each lane: the shift of the weight in those bytes.
  alignas(64) std::array<uint32_t, kChunk> shift{};

  constexpr PackedLayout() {
    for (int k = 0; k < kChunk; ++k) {
      const int byte = k * kBits / 8 - (k < 16 ? 0 : kSecondLoad);
      for (int i = 0; i < 4; ++i) byte_index[4 * k + i] = static_cast<uint8_t>(byte + (i == 1 && byte < 15 ? 1 : 0));
      shift[k] = k * kBits % 8;
    }
  }
};

template <int kBits>
inline constexpr PackedLayout<kBits> kPackedLayout;

// Weight = fma(q, scale, bias), in fp32. kUnit: chunks of a unit: 1 for groups of 32, 2 for groups
// of 64 and 128.
template <int kBits, int kUnit>
class PackedRow {
 public:
  using Layout = PackedLayout<kBits>;
  static constexpr bool kPacked = true;
  static constexpr bool kEvenOdd = kBits == 4;
  // Rows that one token processes side by side. A sum takes a multiply-add of four cycles for each
  // chunk; with chunks of 24 bytes or more, memory is no faster than that.
  static constexpr int kRowsAtOnce = kPlanes != 2 ? 2 : kBits >= 6 ? 1 : 4;
  static constexpr int kChunkBytes = Layout::kBytes;
  static constexpr int kScaleChunks = kUnit;
  // With 16 lanes and at most 4 bits, the weights of all q are computed once for each group, and
  // looked up.
  static constexpr bool kTable = HWY_TARGET <= HWY_AVX3 && kBits <= 4;
  // Expands the scales and biases of `count` consecutive rows. One pass over many rows is much
  // faster than one for each.
  static void Prepare(const Matrix& m, int64_t row, int64_t count, float* scratch) {
    WithWorkingType(m.scale_dtype, [&](auto type) HWY_ATTR {
      using T = decltype(type);
      const int64_t groups = Groups(m), n = count * groups;
      Expand(static_cast<const T*>(m.scales) + row * groups, n, scratch);
      Expand(static_cast<const T*>(m.biases) + row * groups, n, scratch + kPreparedRows * groups);
    });
  }

  // Prefetches the memory that Prepare will read for a row. One row at a time, between the dot
  // products: many at once would delay the stream of weights.
  static HWY_INLINE void PrefetchPrepared(const Matrix& m, int64_t row) {
    const int64_t bytes = Groups(m) * ElementBytes(m.scale_dtype);
    const char *scales = static_cast<const char*>(m.scales) + row * bytes, *biases = static_cast<const char*>(m.biases) + row * bytes;
    for (int64_t b = 0; b < bytes; b += 64) __builtin_prefetch(scales + b, 0, 3), __builtin_prefetch(biases + b, 0, 3);
  }

  static bool HasTail(const Matrix&) { return Layout::kReadsBeyond && kBits == 3; }
  static int UnitsPerGroupLog2(const Matrix& m) { return m.group_size == 128 ? 1 : 0; }

  PackedRow() = default;
  // The row is number `prepared` of the rows of the last Prepare, which filled `scratch`.
  PackedRow(const Matrix& m, int64_t row, int64_t chunk, int64_t prepared, const float* scratch)
      : p_(static_cast<const uint8_t*>(m.data) + row * m.RowBytes() + chunk * kChunkBytes),
        scales_(scratch + prepared * Groups(m) + (chunk * kChunk >> std::countr_zero(static_cast<uint32_t>(m.group_size)))),
        biases_(scales_ + kPreparedRows * Groups(m)) {}

  const char* bytes() const { return reinterpret_cast<const char*>(p_); }

  // Moves over whole groups of chunks that a copy of the reader has read.
  HWY_INLINE void Skip(const Matrix& m, int64_t chunks) {
    const int64_t groups = chunks * kChunk >> std::countr_zero(static_cast<uint32_t>(m.group_size));
    p_ += chunks * kChunkBytes, scales_ += groups, biases_ += groups;
  }

  struct Group {
    LaneVec scale;  // kTable: the weights of q = 0 to 15
    LaneVec bias;
  };

  // The group `index` groups after the one where the reader was created.
  HWY_INLINE Group GroupAt(int64_t index) const {
    const LaneTag d;
    Group g{hn::Set(d, scales_[index]), hn::Set(d, biases_[index])};
    if constexpr (kTable) {
      g.scale = FusedMulAdd(LoadVec(kLowBits.data()), g.scale, g.bias);
    }
    return g;
  }

  HWY_INLINE void Next(const Group& group, LaneVec (&w)[kPlanes]) {
    Dequantize(p_, group, w);
    p_ += kChunkBytes;
  }

  HWY_INLINE void NextTail(const Group& group, LaneVec (&w)[kPlanes]) {
    alignas(16) uint8_t padded[kChunkBytes + 16] = {};
    std::memcpy(padded, p_, kChunkBytes);
    Dequantize(padded, group, w);
  }

 private:
  using BytesTag = hn::Repartition<uint8_t, LaneTag>;
  static constexpr int kMask = (1 << kBits) - 1;
  // q for a four-bit index; bits above those of q are ignored.
  static constexpr std::array<float, 16> kLowBits = [] {
    std::array<float, 16> q{};
    for (int i = 0; i < 16; ++i) q[i] = static_cast<float>(i & kMask);
    return q;
  }();

  // cols / group_size. group_size is a power of two; a division would cost a tenth of the time of a
  // row.
  static HWY_INLINE int64_t Groups(const Matrix& m) { return m.cols >> std::countr_zero(static_cast<uint32_t>(m.group_size)); }

  template <typename T>
  static HWY_INLINE void Expand(const T* in, int64_t n, float* out) {
    int64_t i = 0;
    for (; i + kVecLanes <= n; i += kVecLanes) StoreVec(LoadVec(in + i), out + i);
    for (; i < n; ++i) out[i] = ToFloat(in[i]);
  }

  static HWY_INLINE void Dequantize(const uint8_t* p, const Group& group, LaneVec (&w)[kPlanes]) {
    if constexpr (kBits == 8) {
      LIME_UNROLL for (int i = 0; i < kPlanes; ++i) {
        const hn::Rebind<uint8_t, LaneTag> d8;
        const auto q = hn::PromoteTo(IntTag(), hn::LoadU(d8, p + i * kVecLanes));
        w[i] = FusedMulAdd(hn::ConvertTo(LaneTag(), q), group.scale, group.bias);
      }
    } else if constexpr (kBits == 4) {  // low nibble: even weight; high nibble: odd weight
      constexpr int kHalf = kPlanes / 2;
      LIME_UNROLL for (int i = 0; i < kHalf; ++i) {
        const hn::Rebind<uint8_t, LaneTag> d8;
        const auto q = hn::PromoteTo(BitsTag(), hn::LoadU(d8, p + i * kVecLanes));
        w[i] = Weights(q, group);
        w[i + kHalf] = Weights(hn::ShiftRight<4>(q), group);
      }
    } else {
#if HWY_TARGET == HWY_SCALAR
      constexpr const auto& layout = kPackedLayout<kBits>;
      for (int k = 0; k < kChunk; ++k) {
        const uint8_t* load = p + (k < 16 ? 0 : Layout::kSecondLoad);
        const uint32_t q = (load[layout.byte_index[4 * k]] | uint32_t{load[layout.byte_index[4 * k + 1]]} << 8) >> layout.shift[k];
        w[k] = FusedMulAdd(hn::Set(LaneTag(), static_cast<float>(q & kMask)), group.scale, group.bias);
      }
#else
      LIME_UNROLL for (int i = 0; i < kPlanes; ++i) {
        const auto bytes = hn::LoadDup128(BytesTag(), p + (i * kVecLanes < 16 ? 0 : Layout::kSecondLoad));
        const auto index = hn::Load(BytesTag(), kPackedLayout<kBits>.byte_index.data() + 4 * i * kVecLanes);
        const auto shift = hn::Load(BitsTag(), kPackedLayout<kBits>.shift.data() + i * kVecLanes);
        // Bits of the next weights remain above q.
        const auto q = hn::Shr(hn::BitCast(BitsTag(), hn::TableLookupBytes(bytes, index)), shift);
        w[i] = Weights(q, group);
      }
#endif
    }
  }

  // The weights whose q are the low kBits of each lane.
  template <class Q>
  static HWY_INLINE LaneVec Weights(Q q, const Group& group) {
#if HWY_TARGET <= HWY_AVX3
    // The instruction uses the low four bits of an index.
    if constexpr (kTable) return LaneVec{_mm512_permutexvar_ps(q.raw, group.scale.raw)};
#endif
    q = hn::And(q, hn::Set(BitsTag(), kMask));
    return FusedMulAdd(hn::ConvertTo(LaneTag(), hn::BitCast(IntTag(), q)), group.scale, group.bias);
  }

  const uint8_t* p_ = nullptr;
  const float* scales_ = nullptr;
  const float* biases_ = nullptr;
};

// The chunks of a row to read.
struct ChunkRange {
  int64_t count;
  int units_per_group_log2;
  bool tail;  // read the last chunk with NextTail
};

// Calls fn(w) with the weights of the next chunks of the rows, w[row][plane], and begin() before
// each unit. The rows stand at the beginning of a group. The loop is unrolled by kUnits units:
// fewer steps need fewer instructions.
template <int kUnits, int kRows, class Row, typename Begin, typename Fn>
HWY_INLINE void ForEachChunk(Row (&rows)[kRows], const ChunkRange& range, Begin&& begin, Fn&& fn) {
  LaneVec w[kRows][kPlanes];
  typename Row::Group group[kRows];
  const int64_t full = range.count - (range.tail ? 1 : 0), units = full / Row::kScaleChunks;
  const auto begin_unit = [&](int64_t unit) HWY_ATTR {
    begin();
    LIME_UNROLL for (int r = 0; r < kRows; ++r) group[r] = rows[r].GroupAt(unit >> range.units_per_group_log2);
  };
  const auto next = [&] HWY_ATTR {
    LIME_UNROLL for (int r = 0; r < kRows; ++r) rows[r].Next(group[r], w[r]);
    fn(w);
  };
  const auto read_unit = [&](int64_t unit) HWY_ATTR {
    begin_unit(unit);
    LIME_UNROLL for (int c = 0; c < Row::kScaleChunks; ++c) next();
  };
  int64_t unit = 0;
  if constexpr (kUnits > 1) {
    for (; unit + kUnits <= units; unit += kUnits) {
      LIME_UNROLL for (int u = 0; u < kUnits; ++u) read_unit(unit + u);
    }
  }
  for (; unit < units; ++unit) read_unit(unit);
  if (units * Row::kScaleChunks == range.count) return;
  begin_unit(units);
  if (units * Row::kScaleChunks < full) next();
  if (!range.tail) return;
  LIME_UNROLL for (int r = 0; r < kRows; ++r) rows[r].NextTail(group[r], w[r]);
  fn(w);
}

// Calls fn.operator()<reader>() with the reader of the matrix's rows.
template <typename Fn>
HWY_INLINE void WithRow(const Matrix& m, Fn&& fn) {
  if (m.dtype == DType::kU8) return fn.template operator()<SmallFloatRow<Fp4Codes>>();
  if (m.dtype == DType::kF8E4M3) return fn.template operator()<SmallFloatRow<Fp8Codes>>();
  if (!m.IsPacked()) {
    WithWorkingType(m.dtype, [&](auto type) HWY_ATTR { fn.template operator()<DenseRow<decltype(type)>>(); });
    return;
  }
  const auto with_bits = [&]<int kBits>() HWY_ATTR {
    m.group_size == 32 ? fn.template operator()<PackedRow<kBits, 1>>() : fn.template operator()<PackedRow<kBits, 2>>();
  };
  switch (m.bits) {
    case 3:
      return with_bits.template operator()<3>();
    case 4:
      return with_bits.template operator()<4>();
    case 6:
      return with_bits.template operator()<6>();
    default:
      return with_bits.template operator()<8>();
  }
}

}  // namespace lime::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
