// Readers of weights of mxfp4 and fp8, as linear_rows-inl.h describes readers. Weight = value *
// scale, rounded to fp32 once. Included once for each Highway target, by linear_rows-inl.h alone.
#include "kernels/cpu/base/hwy_targets.h"

#if defined(LIME_KERNELS_CPU_LINEAR_LINEAR_SMALL_FLOATS_INL_H_) == defined(HWY_TARGET_TOGGLE)  // NOLINT
#ifdef LIME_KERNELS_CPU_LINEAR_LINEAR_SMALL_FLOATS_INL_H_
#undef LIME_KERNELS_CPU_LINEAR_LINEAR_SMALL_FLOATS_INL_H_
#else
#define LIME_KERNELS_CPU_LINEAR_LINEAR_SMALL_FLOATS_INL_H_
#endif

#include <algorithm>

#include "kernels/cpu/linear/linear_lanes-inl.h"
#include "planner/base/small_floats.h"

HWY_BEFORE_NAMESPACE();
namespace lime::cpu::HWY_NAMESPACE {

// The decoding of one format: `kChunkBytes` of 32 weights.
struct Fp4Codes {
  static constexpr bool kEvenOdd = true;  // lower bits: the even weight; upper bits: the odd one
  static constexpr int kRowsAtOnce = kPlanes != 2 ? 2 : 4;
  static constexpr int kChunkBytes = 16;
  static constexpr int kScaleChunks = 1;
  static constexpr int kUnitsPerGroupLog2 = 0;
  static constexpr int kGroupChunks = 1;
  // With 16 lanes, the weights of all codes are computed once for each group, and looked up. Else
  // twice the value is looked up as an integer.
  static constexpr bool kTable = HWY_TARGET <= HWY_AVX3;
  static constexpr float kScaleFactor = kTable ? 1.0f : 0.5f;  // exact

  static HWY_INLINE LaneVec ScaleOf(float scale) {
    const LaneVec s = hn::Set(LaneTag(), scale);
    if constexpr (kTable) return hn::Mul(LoadVec(kFp4Values.data()), s);
    return s;
  }

  static HWY_INLINE void Decode(const uint8_t* p, LaneVec scale, LaneVec (&w)[kPlanes]) {
    constexpr int kHalf = kPlanes / 2;
    LIME_UNROLL for (int i = 0; i < kHalf; ++i) {
#if HWY_TARGET == HWY_SCALAR
      w[i] = hn::Mul(hn::Set(LaneTag(), 2 * kFp4Values[p[i] & 15]), scale);
      w[i + kHalf] = hn::Mul(hn::Set(LaneTag(), 2 * kFp4Values[p[i] >> 4]), scale);
#elif HWY_TARGET <= HWY_AVX3
      // The instruction uses the low four bits of an index.
      const hn::Rebind<uint8_t, LaneTag> d8;
      const auto codes = hn::PromoteTo(BitsTag(), hn::LoadU(d8, p + i * kVecLanes));
      w[i] = LaneVec{_mm512_permutexvar_ps(codes.raw, scale.raw)};
      w[i + kHalf] = LaneVec{_mm512_permutexvar_ps(hn::ShiftRight<4>(codes).raw, scale.raw)};
#else
      const hn::Rebind<uint8_t, LaneTag> d8;
      const auto codes = hn::PromoteTo(BitsTag(), hn::LoadU(d8, p + i * kVecLanes));
      w[i] = hn::Mul(Twice(hn::And(codes, hn::Set(BitsTag(), 15))), scale);
      w[i + kHalf] = hn::Mul(Twice(hn::ShiftRight<4>(codes)), scale);
#endif
    }
  }

 private:
#if HWY_TARGET != HWY_SCALAR && HWY_TARGET > HWY_AVX3
  // Twice the values of codes in 32-bit lanes. The lookup takes bytes; the upper three bytes of a
  // lane are zero before and after it.
  static HWY_INLINE LaneVec Twice(hn::Vec<BitsTag> codes) {
    const hn::Repartition<uint8_t, LaneTag> bytes;
    alignas(16) static constexpr uint8_t kTwice[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, 255, 254, 253, 252, 250, 248, 244};
    const auto twice = hn::TableLookupBytes(hn::LoadDup128(bytes, kTwice), hn::BitCast(bytes, codes));
    return hn::ConvertTo(LaneTag(), hn::ShiftRight<24>(hn::BitCast(IntTag(), hn::ShiftLeft<24>(hn::BitCast(BitsTag(), twice)))));
  }
#endif
};

struct Fp8Codes {
  static constexpr bool kEvenOdd = false;
  static constexpr int kRowsAtOnce = kPlanes != 2 ? 2 : 1;
  static constexpr int kChunkBytes = 32;
  static constexpr int kScaleChunks = 2;
  static constexpr int kUnitsPerGroupLog2 = 1;
  static constexpr int kGroupChunks = 4;
  static constexpr float kScaleFactor = 1.0f;

  static HWY_INLINE LaneVec ScaleOf(float scale) { return hn::Set(LaneTag(), scale); }

  static HWY_INLINE void Decode(const uint8_t* p, LaneVec scale, LaneVec (&w)[kPlanes]) {
    LIME_UNROLL for (int i = 0; i < kPlanes; ++i) w[i] = hn::Mul(Values(p + i * kVecLanes), scale);
  }

 private:
  static HWY_INLINE LaneVec Values(const uint8_t* p) {
    const BitsTag d32;
    const LaneTag d;
    const auto codes = hn::PromoteTo(d32, hn::LoadU(hn::Rebind<uint8_t, LaneTag>(), p));
    const auto sign = hn::ShiftLeft<24>(hn::And(codes, hn::Set(d32, 0x80)));
    const auto magnitude = hn::And(codes, hn::Set(d32, 0x7f));
    // A subnormal magnitude is a small integer: it is exact, and no instruction sees a subnormal.
    const auto normal = hn::BitCast(d, hn::Add(hn::ShiftLeft<20>(magnitude), hn::Set(d32, 120u << 23)));
    const auto small = hn::Mul(hn::ConvertTo(d, hn::BitCast(IntTag(), magnitude)), hn::Set(d, 0x1p-9f));
    auto value = hn::IfThenElse(hn::RebindMask(d, hn::Lt(magnitude, hn::Set(d32, 8))), small, normal);
    value = hn::IfThenElse(hn::RebindMask(d, hn::Eq(magnitude, hn::Set(d32, 0x7f))), hn::NaN(d), value);
    return hn::BitCast(d, hn::Or(hn::BitCast(d32, value), sign));
  }
};

// fp32 scales of `count` consecutive rows: out[row * groups + group].
inline void ExpandScales(const Matrix& m, int64_t row, int64_t count, float factor, float* out) {
  const int64_t groups = m.Groups();
  if (m.dtype == DType::kU8) {
    const auto* from = static_cast<const uint8_t*>(m.scales) + row * groups;
    for (int64_t i = 0; i < count * groups; ++i) out[i] = PowerOfCode(from[i]) * factor;
    return;
  }
  WithWorkingType(m.scale_dtype, [&](auto type) HWY_ATTR {
    for (int64_t r = row; r < row + count; ++r, out += groups) {
      const auto* from = static_cast<const decltype(type)*>(m.scales) + (m.first_row + r) / m.scale_rows * m.scale_cols;
      for (int64_t g = 0; g < groups; ++g) out[g] = ToFloat(from[m.scale_cols == 1 ? 0 : g]) * factor;
    }
  });
}

template <class Codes>
class SmallFloatRow {
 public:
  static constexpr bool kPacked = true;
  static constexpr bool kEvenOdd = Codes::kEvenOdd;
  static constexpr int kRowsAtOnce = Codes::kRowsAtOnce;
  static constexpr int kChunkBytes = Codes::kChunkBytes;
  static constexpr int kScaleChunks = Codes::kScaleChunks;

  static void Prepare(const Matrix& m, int64_t row, int64_t count, float* scratch) {
    ExpandScales(m, row, count, Codes::kScaleFactor, scratch);
  }
  static HWY_INLINE void PrefetchPrepared(const Matrix& m, int64_t row) {
    const int64_t at = m.dtype == DType::kU8 ? row : (m.first_row + row) / m.scale_rows;
    const int64_t bytes = (m.dtype == DType::kU8 ? m.Groups() : m.scale_cols) * ElementBytes(m.scale_dtype);
    const char* scales = static_cast<const char*>(m.scales) + at * bytes;
    for (int64_t b = 0; b < bytes; b += 64) __builtin_prefetch(scales + b, 0, 3);
  }
  static bool HasTail(const Matrix&) { return false; }
  static int UnitsPerGroupLog2(const Matrix&) { return Codes::kUnitsPerGroupLog2; }

  SmallFloatRow() = default;
  SmallFloatRow(const Matrix& m, int64_t row, int64_t chunk, int64_t prepared, const float* scratch)
      : p_(static_cast<const uint8_t*>(m.data) + row * m.RowBytes() + chunk * kChunkBytes),
        scales_(scratch + prepared * m.Groups() + chunk / Codes::kGroupChunks) {}

  const char* bytes() const { return reinterpret_cast<const char*>(p_); }

  // Moves over chunks that a copy of the reader has read: whole groups, or the rest of the row.
  HWY_INLINE void Skip(const Matrix&, int64_t chunks) { p_ += chunks * kChunkBytes, scales_ += chunks / Codes::kGroupChunks; }

  struct Group {
    LaneVec scale;
  };
  HWY_INLINE Group GroupAt(int64_t index) const { return {Codes::ScaleOf(scales_[index])}; }

  HWY_INLINE void Next(const Group& group, LaneVec (&w)[kPlanes]) {
    Codes::Decode(p_, group.scale, w);
    p_ += kChunkBytes;
  }
  HWY_INLINE void NextTail(const Group& group, LaneVec (&w)[kPlanes]) { Next(group, w); }

 private:
  const uint8_t* p_ = nullptr;
  const float* scales_ = nullptr;
};

}  // namespace lime::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
