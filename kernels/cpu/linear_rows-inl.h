// Reads one row of weights, 32 at a time, as exact fp32: one reader per format. Included once per Highway target.
//
// A reader gives chunk c of its row with Load(c, planes) for c < full_chunks(), and the last one, where it is cut short, with LoadTail(c,
// planes): nothing outside the row's bytes is read.
#include "kernels/cpu/hwy_targets.h"

#if defined(LIME_KERNELS_CPU_LINEAR_ROWS_INL_H_) == defined(HWY_TARGET_TOGGLE)  // NOLINT
#ifdef LIME_KERNELS_CPU_LINEAR_ROWS_INL_H_
#undef LIME_KERNELS_CPU_LINEAR_ROWS_INL_H_
#else
#define LIME_KERNELS_CPU_LINEAR_ROWS_INL_H_
#endif

#include <hwy/cache_control.h>

#include <array>
#include <bit>

#include "kernels/cpu/linear_lanes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace lime::cpu::HWY_NAMESPACE {

template <typename T>
class DenseRow {
 public:
  static constexpr bool kPacked = false;
  static constexpr int kChunkBytes = kChunk * sizeof(T);

  static void Prepare(const Matrix&, int64_t, int64_t, float*) {}

  DenseRow(const Matrix& m, int64_t row, int64_t, const float*) : p_(static_cast<const T*>(m.data) + row * m.cols), cols_(m.cols) {}

  int64_t full_chunks() const { return cols_ / kChunk; }
  const char* bytes() const { return reinterpret_cast<const char*>(p_); }

  HWY_INLINE void Load(int64_t chunk, LaneVec (&w)[kPlanes]) const { LoadFrom(p_ + chunk * kChunk, w); }

  HWY_INLINE void LoadTail(int64_t chunk, LaneVec (&w)[kPlanes]) const {
    T padded[kChunk] = {};
    std::memcpy(padded, p_ + chunk * kChunk, (cols_ - chunk * kChunk) * sizeof(T));
    LoadFrom(padded, w);
  }

 private:
  static HWY_INLINE void LoadFrom(const T* p, LaneVec (&w)[kPlanes]) {
    LIME_UNROLL for (int i = 0; i < kPlanes; ++i) w[i] = LoadVec(p + i * kVecLanes);
  }

  const T* p_;
  int64_t cols_;
};

// Where the weights of a chunk lie in its 4 * kBits bytes. They are read as two halves of 16 weights with one 16-byte load each, the second
// half's load ending with the chunk (3 bits: both loads begin with it, and reach 4 bytes too far).
template <int kBits>
struct PackedLayout {
  static constexpr int kBytes = 4 * kBits;
  static constexpr int kSecondLoad = kBytes > 16 ? kBytes - 16 : 0;
  static constexpr bool kReadsBeyond = kBytes < 16;

  alignas(64) std::array<uint8_t, 4 * kChunk> byte_index{};  // per lane: the two bytes of its load that hold the weight, in the low half
  alignas(64) std::array<uint32_t, kChunk> shift{};          // per lane: of the weight in those bytes

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

// Weight = fma(q, scale, bias), in fp32.
template <int kBits>
class PackedRow {
 public:
  using Layout = PackedLayout<kBits>;
  static constexpr bool kPacked = true;
  static constexpr int kChunkBytes = Layout::kBytes;

  // Expands the scales and biases of `count` rows, which lie side by side: one pass over many is far quicker than one per row.
  static void Prepare(const Matrix& m, int64_t row, int64_t count, float* scratch) {
    WithWorkingType(m.scale_dtype, [&](auto type) HWY_ATTR {
      using T = decltype(type);
      const int64_t groups = Groups(m), n = count * groups;
      Expand(static_cast<const T*>(m.scales) + row * groups, n, scratch);
      Expand(static_cast<const T*>(m.biases) + row * groups, n, scratch + kPreparedRows * groups);
    });
  }

  // The row is the one at `prepared` of those that Prepare put into scratch last.
  PackedRow(const Matrix& m, int64_t row, int64_t prepared, const float* scratch)
      : p_(static_cast<const uint8_t*>(m.data) + row * m.RowBytes()),
        chunks_(m.cols / kChunk),
        group_shift_(std::countr_zero(static_cast<uint32_t>(m.group_size)) - std::countr_zero(static_cast<uint32_t>(kChunk))),
        scales_(scratch + prepared * Groups(m)),
        biases_(scales_ + kPreparedRows * Groups(m)) {}

  int64_t full_chunks() const { return chunks_ - (Layout::kReadsBeyond ? 1 : 0); }
  const char* bytes() const { return reinterpret_cast<const char*>(p_); }

  HWY_INLINE void Load(int64_t chunk, LaneVec (&w)[kPlanes]) const { Dequantize(p_ + chunk * kChunkBytes, chunk >> group_shift_, w); }

  HWY_INLINE void LoadTail(int64_t chunk, LaneVec (&w)[kPlanes]) const {
    alignas(16) uint8_t padded[kChunkBytes + 16] = {};
    std::memcpy(padded, p_ + chunk * kChunkBytes, kChunkBytes);
    Dequantize(padded, chunk >> group_shift_, w);
  }

 private:
  using BytesTag = hn::Repartition<uint8_t, LaneTag>;

  // cols / group_size, a power of two; a division would cost a tenth of a row.
  static HWY_INLINE int64_t Groups(const Matrix& m) { return m.cols >> std::countr_zero(static_cast<uint32_t>(m.group_size)); }

  template <typename T>
  static HWY_INLINE void Expand(const T* in, int64_t n, float* out) {
    for (int64_t line = 0; line < n; line += 64 / sizeof(T)) hwy::Prefetch(in + n + line);  // of the next call
    int64_t i = 0;
    for (; i + kVecLanes <= n; i += kVecLanes) StoreVec(LoadVec(in + i), out + i);
    for (; i < n; ++i) out[i] = ToFloat(in[i]);
  }

  HWY_INLINE void Dequantize(const uint8_t* p, int64_t group, LaneVec (&w)[kPlanes]) const {
    const LaneTag d;
    const LaneVec scale = hn::Set(d, scales_[group]);
    const LaneVec bias = hn::Set(d, biases_[group]);
    if constexpr (kBits == 8) {
      LIME_UNROLL for (int i = 0; i < kPlanes; ++i) {
        const hn::Rebind<uint8_t, LaneTag> d8;
        const auto q = hn::PromoteTo(IntTag(), hn::LoadU(d8, p + i * kVecLanes));
        w[i] = FusedMulAdd(hn::ConvertTo(d, q), scale, bias);
      }
    } else if constexpr (kBits == 4) {  // a byte's low nibble is an even weight, its high nibble the odd one after it
      constexpr int kHalf = kPlanes / 2;
      LIME_UNROLL for (int i = 0; i < kHalf; ++i) {
        const hn::Rebind<uint8_t, LaneTag> d8;
        const auto q = hn::PromoteTo(BitsTag(), hn::LoadU(d8, p + i * kVecLanes));
        w[i] = Weights(q, scale, bias);
        w[i + kHalf] = Weights(hn::ShiftRight<4>(q), scale, bias);
      }
    } else {
#if HWY_TARGET == HWY_SCALAR
      constexpr const auto& layout = kPackedLayout<kBits>;
      for (int k = 0; k < kChunk; ++k) {
        const uint8_t* load = p + (k < 16 ? 0 : Layout::kSecondLoad);
        const uint32_t q = (load[layout.byte_index[4 * k]] | uint32_t{load[layout.byte_index[4 * k + 1]]} << 8) >> layout.shift[k];
        w[k] = FusedMulAdd(hn::Set(d, static_cast<float>(q & ((1u << kBits) - 1))), scale, bias);
      }
#else
      LIME_UNROLL for (int i = 0; i < kPlanes; ++i) {
        const auto bytes = hn::LoadDup128(BytesTag(), p + (i * kVecLanes < 16 ? 0 : Layout::kSecondLoad));
        const auto index = hn::Load(BytesTag(), kPackedLayout<kBits>.byte_index.data() + 4 * i * kVecLanes);
        const auto shift = hn::Load(BitsTag(), kPackedLayout<kBits>.shift.data() + i * kVecLanes);
        const auto q = hn::Shr(hn::BitCast(BitsTag(), hn::TableLookupBytes(bytes, index)), shift);  // and the next weights above it
        w[i] = Weights(q, scale, bias);
      }
#endif
    }
  }

  // The weights whose q are the low kBits of each lane.
  template <class Q>
  static HWY_INLINE LaneVec Weights(Q q, LaneVec scale, LaneVec bias) {
    const LaneTag d;
    const auto mask = hn::Set(BitsTag(), (1u << kBits) - 1);
#if HWY_TARGET == HWY_AVX3
    if constexpr (kBits <= 4) {  // compute the weights of all q once, and pick: the permutation reads the low four bits of an index
      const auto all = hn::BitCast(IntTag(), hn::And(hn::Iota(BitsTag(), 0), mask));
      return LaneVec{_mm512_permutexvar_ps(q.raw, FusedMulAdd(hn::ConvertTo(d, all), scale, bias).raw)};
    }
#endif
    return FusedMulAdd(hn::ConvertTo(d, hn::BitCast(IntTag(), hn::And(q, mask))), scale, bias);
  }

  const uint8_t* p_;
  int64_t chunks_;
  int group_shift_;
  const float* scales_;
  const float* biases_;
};

}  // namespace lime::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
