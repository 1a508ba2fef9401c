// The 32 lanes of a dot product in registers, and the fixed tree that adds them. Included once for
// each Highway target.
#include "kernels/cpu/base/hwy_targets.h"

#if defined(LIME_KERNELS_CPU_LINEAR_LINEAR_LANES_INL_H_) == defined(HWY_TARGET_TOGGLE)  // NOLINT
#ifdef LIME_KERNELS_CPU_LINEAR_LINEAR_LANES_INL_H_
#undef LIME_KERNELS_CPU_LINEAR_LINEAR_LANES_INL_H_
#else
#define LIME_KERNELS_CPU_LINEAR_LINEAR_LANES_INL_H_
#endif

#include "kernels/cpu/base/lanes-inl.h"
#include "kernels/cpu/linear/linear_kernels.h"

#undef LIME_UNROLL
#if LIME_LANES_EMULATED
#define LIME_UNROLL  // nothing to keep in registers
#else
#define LIME_UNROLL _Pragma("GCC unroll 32")
#endif

HWY_BEFORE_NAMESPACE();
namespace lime::cpu::HWY_NAMESPACE {

inline constexpr int kPlanes = kChunk / kVecLanes;  // vectors that hold the 32 lanes, in ascending order

#if HWY_TARGET != HWY_SCALAR
using QuadTag = hn::FixedTag<float, 4>;
using Quad = hn::Vec<QuadTag>;

HWY_INLINE Quad FoldTo4(Quad v) {
  return v;
}

#if HWY_MAX_BYTES > 16
template <class T>
HWY_INLINE Quad FoldTo4(T v) {
  const hn::Half<hn::DFromV<T>> half;
  return FoldTo4(hn::Add(hn::LowerHalf(half, v), hn::UpperHalf(half, v)));
}
#endif

// Adds the lanes of `count` vectors down to 4. Each step adds lanes that are half of the remaining
// lanes apart.
HWY_INLINE Quad FoldLanes(LaneVec* lanes, int count) {
  LIME_UNROLL for (int width = count / 2; width > 0; width /= 2) {
    LIME_UNROLL for (int p = 0; p < width; ++p) lanes[p] = hn::Add(lanes[p], lanes[p + width]);
  }
  return FoldTo4(lanes[0]);
}

// The end of the tree: (lane 0 + lane 2) + (lane 1 + lane 3).
HWY_INLINE float SumLanes(Quad v) {
  v = hn::Add(v, hn::Shuffle1032(v));
  return hn::GetLane(hn::Add(v, hn::Shuffle2301(v)));
}

// The same for four sums, stored side by side.
HWY_INLINE void SumLanes(const Quad (&v)[4], float* out) {
  const QuadTag quad;
  const Quad ab = hn::Add(hn::InterleaveLower(quad, v[0], v[1]), hn::InterleaveUpper(quad, v[0], v[1]));  // a0+a2 b0+b2 a1+a3 b1+b3
  const Quad cd = hn::Add(hn::InterleaveLower(quad, v[2], v[3]), hn::InterleaveUpper(quad, v[2], v[3]));
  hn::StoreU(hn::Add(hn::ConcatLowerLower(quad, cd, ab), hn::ConcatUpperUpper(quad, cd, ab)), quad, out);
}

// The even (odd) lanes of two consecutive vectors.
HWY_INLINE LaneVec EvenLanes(LaneVec low, LaneVec high) {
  return hn::ConcatEven(LaneTag(), high, low);
}
HWY_INLINE LaneVec OddLanes(LaneVec low, LaneVec high) {
  return hn::ConcatOdd(LaneTag(), high, low);
}
#else  // one lane per vector
struct Quad {
  float lane[4];
};

inline Quad FoldLanes(LaneVec* lanes, int count) {
  for (int width = count / 2; width >= 4; width /= 2) {
    for (int p = 0; p < width; ++p) lanes[p] = hn::Add(lanes[p], lanes[p + width]);
  }
  return {{lanes[0].raw, lanes[1].raw, lanes[2].raw, lanes[3].raw}};
}

inline float SumLanes(const Quad& v) {
  return (v.lane[0] + v.lane[2]) + (v.lane[1] + v.lane[3]);
}

inline void SumLanes(const Quad (&v)[4], float* out) {
  for (int i = 0; i < 4; ++i) out[i] = SumLanes(v[i]);
}

inline LaneVec EvenLanes(LaneVec low, LaneVec) {
  return low;
}
inline LaneVec OddLanes(LaneVec, LaneVec high) {
  return high;
}
#endif

// Adds up 32 lanes in the fixed tree: lanes 16 apart, then 8, 4, 2 and 1 apart. If even lanes lie
// before odd lanes, the last step adds the sum of the even ones to the sum of the odd ones; the
// other steps are the same within each half.
HWY_INLINE float SumLanes(LaneVec (&lanes)[kPlanes], bool even_odd) {
  if (!even_odd) return SumLanes(FoldLanes(lanes, kPlanes));
  const float even = SumLanes(FoldLanes(lanes, kPlanes / 2));
  return even + SumLanes(FoldLanes(lanes + kPlanes / 2, kPlanes / 2));
}

#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3
// The sums of the lanes of a, b, c and d, in all lanes of the 128-bit block 0, 2, 1 and 3
// respectively. With four vectors together, every step of the tree fills whole vectors.
HWY_INLINE LaneVec SumOfBlocks(LaneVec a, LaneVec b, LaneVec c, LaneVec d) {
  const LaneTag tag;
  const LaneVec ab = hn::Add(hn::ConcatLowerLower(tag, b, a), hn::ConcatUpperUpper(tag, b, a));
  const LaneVec cd = hn::Add(hn::ConcatLowerLower(tag, d, c), hn::ConcatUpperUpper(tag, d, c));
  const LaneVec low = hn::OddEvenBlocks(hn::SwapAdjacentBlocks(cd), ab), high = hn::OddEvenBlocks(cd, hn::SwapAdjacentBlocks(ab));
  LaneVec sum = hn::Add(low, high);
  sum = hn::Add(sum, hn::Shuffle1032(sum));
  return hn::Add(sum, hn::Shuffle2301(sum));
}

// As the version below.
HWY_INLINE void SumLanes(LaneVec (&lanes)[4][kPlanes], bool even_odd, float* out) {
  static_assert(kPlanes == 2);
  LaneVec sum;
  if (even_odd) {
    const LaneVec even = SumOfBlocks(lanes[0][0], lanes[1][0], lanes[2][0], lanes[3][0]);
    sum = hn::Add(even, SumOfBlocks(lanes[0][1], lanes[1][1], lanes[2][1], lanes[3][1]));
  } else {
    LIME_UNROLL for (int i = 0; i < 4; ++i) lanes[i][0] = hn::Add(lanes[i][0], lanes[i][1]);
    sum = SumOfBlocks(lanes[0][0], lanes[1][0], lanes[2][0], lanes[3][0]);
  }
  alignas(16) static constexpr int32_t kFirstOfBlock[kVecLanes] = {0, 8, 4, 12};
  sum = hn::TableLookupLanes(sum, hn::SetTableIndices(LaneTag(), kFirstOfBlock));
  hn::StoreU(hn::LowerHalf(hn::LowerHalf(sum)), QuadTag(), out);
}
#else
// SumLanes of four sums, stored side by side.
HWY_INLINE void SumLanes(LaneVec (&lanes)[4][kPlanes], bool even_odd, float* out) {
  Quad sum[4];
  const int count = even_odd ? kPlanes / 2 : kPlanes;
  LIME_UNROLL for (int i = 0; i < 4; ++i) sum[i] = FoldLanes(lanes[i], count);
  SumLanes(sum, out);
  if (!even_odd) return;
  float odd[4];
  LIME_UNROLL for (int i = 0; i < 4; ++i) sum[i] = FoldLanes(lanes[i] + kPlanes / 2, count);
  SumLanes(sum, odd);
  LIME_UNROLL for (int i = 0; i < 4; ++i) out[i] += odd[i];
}
#endif

// Loads 32 elements of x, of which `count` exist, in the lanes' order.
template <typename T>
HWY_INLINE void LoadChunk(const T* x, int64_t count, LaneOrder order, LaneVec (&lanes)[kPlanes]) {
  T padded[kChunk] = {};
  if (count < kChunk) {
    std::memcpy(padded, x, count * sizeof(T));
    x = padded;
  }
  LIME_UNROLL for (int p = 0; p < kPlanes; ++p) lanes[p] = LoadVec(x + p * kVecLanes);
  if (order == LaneOrder::kNatural) return;
  LaneVec natural[kPlanes];
  LIME_UNROLL for (int p = 0; p < kPlanes; ++p) natural[p] = lanes[p];
  LIME_UNROLL for (int p = 0; p < kPlanes / 2; ++p) {
    lanes[p] = EvenLanes(natural[2 * p], natural[2 * p + 1]);
    lanes[p + kPlanes / 2] = OddLanes(natural[2 * p], natural[2 * p + 1]);
  }
}

}  // namespace lime::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
