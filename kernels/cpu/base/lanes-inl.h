// Sixteen fp32 lanes on every instruction set, and their operations. Included once for each Highway
// target.
//
// An expression gives the same bits on every target. A lane does plain IEEE operations
// (multiply-adds are always fused), and lanes are combined only in ReduceAdd's fixed tree. Targets
// differ only in how many vectors hold the sixteen lanes.
#include "kernels/cpu/base/hwy_targets.h"
#include "planner/base/float_bits.h"

#if defined(LIME_KERNELS_CPU_BASE_LANES_INL_H_) == defined(HWY_TARGET_TOGGLE)  // NOLINT
#ifdef LIME_KERNELS_CPU_BASE_LANES_INL_H_
#undef LIME_KERNELS_CPU_BASE_LANES_INL_H_
#else
#define LIME_KERNELS_CPU_BASE_LANES_INL_H_
#endif

#include <hwy/highway.h>

#include <cmath>
#include <cstring>

#undef LIME_LANES_EMULATED
#if HWY_TARGET == HWY_SCALAR || HWY_TARGET == HWY_EMU128
#define LIME_LANES_EMULATED 1
#else
#define LIME_LANES_EMULATED 0
#endif

HWY_BEFORE_NAMESPACE();
namespace lime::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

inline constexpr int kLanes = 16;
using LaneTag = hn::CappedTag<float, kLanes>;
using LaneVec = hn::Vec<LaneTag>;
using IntTag = hn::RebindToSigned<LaneTag>;
using BitsTag = hn::RebindToUnsigned<LaneTag>;
inline constexpr int kVecLanes = hn::MaxLanes(LaneTag());
inline constexpr int kVecs = kLanes / kVecLanes;

struct F32x16 {
  LaneVec v[kVecs];
};

// Sanitizer builds and emulated lanes call these functions instead of inlining them, which halves the
// compile time of the kernels. Emulated lanes spend their time in std::fma.
#undef LIME_LANES_SHARED
#if defined(LIME_SANITIZED) || LIME_LANES_EMULATED
#define LIME_LANES_SHARED inline HWY_NOINLINE
#else
#define LIME_LANES_SHARED HWY_INLINE
#endif

#ifndef LIME_EACH_VEC
#define LIME_EACH_VEC(i) _Pragma("GCC unroll 4") for (int i = 0; i < kVecs; ++i)
#endif

HWY_INLINE F32x16 Set(float x) {
  F32x16 r;
  LIME_EACH_VEC(i) r.v[i] = hn::Set(LaneTag(), x);
  return r;
}
HWY_INLINE F32x16 Zero() {
  return Set(0.0f);
}

// a * b + c, rounded once.
#if LIME_LANES_EMULATED
LIME_LANES_SHARED LaneVec FusedMulAdd(LaneVec a, LaneVec b, LaneVec c) {
  alignas(64) float x[kVecLanes], y[kVecLanes], z[kVecLanes];
  hn::Store(a, LaneTag(), x);
  hn::Store(b, LaneTag(), y);
  hn::Store(c, LaneTag(), z);
  for (int i = 0; i < kVecLanes; ++i) z[i] = std::fma(x[i], y[i], z[i]);
  return hn::Load(LaneTag(), z);
}
#else
HWY_INLINE LaneVec FusedMulAdd(LaneVec a, LaneVec b, LaneVec c) {
  return hn::MulAdd(a, b, c);
}
#endif

HWY_INLINE F32x16 MulAdd(F32x16 a, F32x16 b, F32x16 c) {
  LIME_EACH_VEC(i) c.v[i] = FusedMulAdd(a.v[i], b.v[i], c.v[i]);
  return c;
}
HWY_INLINE F32x16 Add(F32x16 a, F32x16 b) {
  LIME_EACH_VEC(i) a.v[i] = hn::Add(a.v[i], b.v[i]);
  return a;
}
HWY_INLINE F32x16 Sub(F32x16 a, F32x16 b) {
  LIME_EACH_VEC(i) a.v[i] = hn::Sub(a.v[i], b.v[i]);
  return a;
}
HWY_INLINE F32x16 Mul(F32x16 a, F32x16 b) {
  LIME_EACH_VEC(i) a.v[i] = hn::Mul(a.v[i], b.v[i]);
  return a;
}
HWY_INLINE F32x16 Div(F32x16 a, F32x16 b) {
  LIME_EACH_VEC(i) a.v[i] = hn::Div(a.v[i], b.v[i]);
  return a;
}
HWY_INLINE F32x16 Neg(F32x16 a) {
  LIME_EACH_VEC(i) a.v[i] = hn::Neg(a.v[i]);
  return a;
}

// a > b ? a : b. So a NaN in `a` gives b, on every instruction set.
HWY_INLINE F32x16 Greater(F32x16 a, F32x16 b) {
  LIME_EACH_VEC(i) b.v[i] = hn::IfThenElse(hn::Gt(a.v[i], b.v[i]), a.v[i], b.v[i]);
  return b;
}

// a < b ? a : b. So a NaN in `a` gives b, on every instruction set.
HWY_INLINE F32x16 Smaller(F32x16 a, F32x16 b) {
  LIME_EACH_VEC(i) b.v[i] = hn::IfThenElse(hn::Lt(a.v[i], b.v[i]), a.v[i], b.v[i]);
  return b;
}

// x < 0 ? a : b.
HWY_INLINE F32x16 IfNegative(F32x16 x, F32x16 a, F32x16 b) {
  LIME_EACH_VEC(i) b.v[i] = hn::IfThenElse(hn::Lt(x.v[i], hn::Zero(LaneTag())), a.v[i], b.v[i]);
  return b;
}

// a < 0 ? 0 : a; NaN stays NaN.
HWY_INLINE F32x16 ZeroIfNegative(F32x16 a) {
  LIME_EACH_VEC(i) a.v[i] = hn::IfThenElse(hn::Lt(a.v[i], hn::Zero(LaneTag())), hn::Zero(LaneTag()), a.v[i]);
  return a;
}

// 0 where a <= threshold, else a.
HWY_INLINE F32x16 ZeroUpTo(F32x16 threshold, F32x16 a) {
  LIME_EACH_VEC(i) a.v[i] = hn::IfThenElse(hn::Le(a.v[i], threshold.v[i]), hn::Zero(LaneTag()), a.v[i]);
  return a;
}

// ---- Loads and stores of working dtypes

HWY_INLINE LaneVec LoadVec(const float* p) {
  return hn::LoadU(LaneTag(), p);
}
HWY_INLINE void StoreVec(LaneVec x, float* p) {
  hn::StoreU(x, LaneTag(), p);
}

HWY_INLINE LaneVec LoadVec(const BF16* p) {
  const hn::Rebind<uint16_t, LaneTag> d16;
  const auto bits = hn::PromoteTo(BitsTag(), hn::LoadU(d16, reinterpret_cast<const uint16_t*>(p)));
  return hn::BitCast(LaneTag(), hn::ShiftLeft<16>(bits));
}

HWY_INLINE void StoreVec(LaneVec x, BF16* p) {
  const hn::Rebind<uint16_t, LaneTag> d16;
  const BitsTag d32;
  const auto bits = hn::BitCast(d32, x);
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(d32, 1));
  const auto rounded = hn::Add(bits, hn::Add(odd, hn::Set(d32, 0x7fff)));
  const auto quiet = hn::Or(bits, hn::Set(d32, 0x400000));
  const auto chosen = hn::IfThenElse(hn::RebindMask(d32, hn::IsNaN(x)), quiet, rounded);
  const auto upper = hn::BitCast(IntTag(), hn::ShiftRight<16>(chosen));
  hn::StoreU(hn::DemoteTo(d16, upper), d16, reinterpret_cast<uint16_t*>(p));
}

#if LIME_LANES_EMULATED
HWY_INLINE LaneVec LoadVec(const F16* p) {
  alignas(64) float x[kVecLanes];
  for (int i = 0; i < kVecLanes; ++i) x[i] = ToFloat(p[i]);
  return hn::Load(LaneTag(), x);
}
HWY_INLINE void StoreVec(LaneVec v, F16* p) {
  alignas(64) float x[kVecLanes];
  hn::Store(v, LaneTag(), x);
  for (int i = 0; i < kVecLanes; ++i) p[i] = FromFloat<F16>(x[i]);
}
#else
HWY_INLINE LaneVec LoadVec(const F16* p) {
  const hn::Rebind<hwy::float16_t, LaneTag> d16;
  const hn::Rebind<uint16_t, LaneTag> du16;
  return hn::PromoteTo(LaneTag(), hn::BitCast(d16, hn::LoadU(du16, reinterpret_cast<const uint16_t*>(p))));
}
HWY_INLINE void StoreVec(LaneVec x, F16* p) {
  const hn::Rebind<hwy::float16_t, LaneTag> d16;
  const hn::Rebind<uint16_t, LaneTag> du16;
  hn::StoreU(hn::BitCast(du16, hn::DemoteTo(d16, x)), du16, reinterpret_cast<uint16_t*>(p));
}
#endif

template <typename T>
LIME_LANES_SHARED F32x16 Load(const T* p) {
  F32x16 r;
  LIME_EACH_VEC(i) r.v[i] = LoadVec(p + i * kVecLanes);
  return r;
}

template <typename T>
LIME_LANES_SHARED void Store(F32x16 x, T* p) {
  LIME_EACH_VEC(i) StoreVec(x.v[i], p + i * kVecLanes);
}

// The first n elements, 1 <= n < 16; the other lanes are zero, and nothing beyond them is read.
template <typename T>
LIME_LANES_SHARED F32x16 LoadFirst(const T* p, int64_t n) {
  T padded[kLanes] = {};
  std::memcpy(padded, p, n * sizeof(T));
  return Load(padded);
}

template <typename T>
LIME_LANES_SHARED void StoreFirst(F32x16 x, T* p, int64_t n) {
  T padded[kLanes];
  Store(x, padded);
  std::memcpy(p, padded, n * sizeof(T));
}

// ---- Reductions: lanes l and l + 8, then l and l + 4, l + 2, l + 1

LIME_LANES_SHARED float ReduceAdd(F32x16 x) {
  alignas(64) float lane[kLanes];
  Store(x, lane);
  for (int half = kLanes / 2; half > 0; half /= 2)
    for (int l = 0; l < half; ++l) lane[l] += lane[l + half];
  return lane[0];
}

// The largest lane that is not NaN; -inf if all are NaN.
LIME_LANES_SHARED float ReduceMax(F32x16 x) {
  alignas(64) float lane[kLanes];
  Store(x, lane);
  float largest = -INFINITY;
  for (float value : lane) largest = value > largest ? value : largest;
  return largest;
}

// ---- exp

// e^x within 1 ulp. Infinity from 88.72284, gradual underflow to zero below -87.3, exp(-inf) = 0,
// NaN stays NaN. x = n ln 2 + r with |r| <= ln 2 / 2. e^r is its series up to r^7 (error 0.1 ulp).
// 2^n is computed as two factors, so that n = 128 and n = -150 are representable.
HWY_INLINE LaneVec ExpVec(LaneVec x) {
  const LaneTag d;
  const IntTag di;
  const auto low = hn::Set(d, -105.0f), high = hn::Set(d, 89.0f);
  x = hn::IfThenElse(hn::Lt(x, low), low, x);  // comparisons with NaN are false, so NaN stays
  x = hn::IfThenElse(hn::Gt(x, high), high, x);
  // 1.5 * 2^23: adding it puts round(x / ln 2) into the low bits.
  const auto shifter = hn::Set(d, 12582912.0f);
  const auto shifted = FusedMulAdd(x, hn::Set(d, 1.44269504f), shifter);
  const auto n = hn::Sub(shifted, shifter);
  auto r = FusedMulAdd(n, hn::Set(d, -0.693359375f), x);
  r = FusedMulAdd(n, hn::Set(d, 2.12194440e-4f), r);
  auto p = hn::Set(d, 1.0f / 5040);
  p = FusedMulAdd(p, r, hn::Set(d, 1.0f / 720));
  p = FusedMulAdd(p, r, hn::Set(d, 1.0f / 120));
  p = FusedMulAdd(p, r, hn::Set(d, 1.0f / 24));
  p = FusedMulAdd(p, r, hn::Set(d, 1.0f / 6));
  p = FusedMulAdd(p, r, hn::Set(d, 0.5f));
  p = FusedMulAdd(p, r, hn::Set(d, 1.0f));
  p = FusedMulAdd(p, r, hn::Set(d, 1.0f));
  const auto exponent = hn::Sub(hn::BitCast(di, shifted), hn::BitCast(di, shifter));
  const auto first = hn::ShiftRight<1>(exponent);
  const auto second = hn::Sub(exponent, first);
  const auto bias = hn::Set(di, 127);
  const auto scale1 = hn::BitCast(d, hn::ShiftLeft<23>(hn::Add(first, bias)));
  const auto scale2 = hn::BitCast(d, hn::ShiftLeft<23>(hn::Add(second, bias)));
  return hn::Mul(hn::Mul(p, scale1), scale2);
}

LIME_LANES_SHARED F32x16 Exp(F32x16 x) {
  LIME_EACH_VEC(i) x.v[i] = ExpVec(x.v[i]);
  return x;
}

// The same bits as a lane of Exp.
LIME_LANES_SHARED float ExpOne(float x) {
  return hn::GetLane(ExpVec(hn::Set(LaneTag(), x)));
}

// ---- Functions of exp

// 1 / (1 + e^-x).
HWY_INLINE F32x16 Sigmoid(F32x16 x) {
  return Div(Set(1.0f), Add(Set(1.0f), Exp(Neg(x))));
}

// x / (1 + e^-x).
HWY_INLINE F32x16 Silu(F32x16 x) {
  return Div(x, Add(Set(1.0f), Exp(Neg(x))));
}

// x * (1 + erf(x / sqrt(2))) / 2 = x P(x), where P is the normal distribution, within 1e-6 of the
// result while that is a normal number. With u = |x|, P(-u) = e^(-u^2 / 2) f(s) / (1 + 0.35 u) and
// s = 2 / (1 + 0.35 u) - 1. f is smooth; its polynomial is off by 1e-8 for u <= 20, where e^(-u^2/2)
// has become zero. The rounding error of u^2 is computed, too.
LIME_LANES_SHARED F32x16 Gelu(F32x16 x) {
  const F32x16 u = Smaller(Set(20.0f), Greater(x, Neg(x)));
  const F32x16 part = Div(Set(1.0f), MulAdd(Set(0.35f), u, Set(1.0f)));
  const F32x16 s = MulAdd(Set(2.0f), part, Set(-1.0f));
  F32x16 f = Set(1.9505989257595502e-05f);
  f = MulAdd(f, s, Set(-2.1333626136765815e-05f));
  f = MulAdd(f, s, Set(-0.0001393473648931831f));
  f = MulAdd(f, s, Set(0.00024141909671016037f));
  f = MulAdd(f, s, Set(0.0007024839869700372f));
  f = MulAdd(f, s, Set(-0.001766087138094008f));
  f = MulAdd(f, s, Set(-0.005111532285809517f));
  f = MulAdd(f, s, Set(0.010235690511763096f));
  f = MulAdd(f, s, Set(0.07109919935464859f));
  f = MulAdd(f, s, Set(0.1714957356452942f));
  f = MulAdd(f, s, Set(0.2532442808151245f));
  const F32x16 square = Mul(u, u), rest = MulAdd(u, u, Neg(square)), minus_half = Set(-0.5f);
  const F32x16 bell = Mul(Exp(Mul(square, minus_half)), MulAdd(rest, minus_half, Set(1.0f)));
  const F32x16 tail = Mul(Mul(f, part), bell);
  return Mul(x, IfNegative(x, tail, Sub(Set(1.0f), tail)));
}

// x * (1 + tanh(y)) / 2 = x / (1 + e^(-2 y)) with y = sqrt(2 / pi) (x + 0.044715 x^3).
LIME_LANES_SHARED F32x16 GeluTanh(F32x16 x) {
  const F32x16 y2 = Mul(x, MulAdd(Mul(x, x), Set(0.07135481627f), Set(1.5957691216f)));
  return Div(x, Add(Set(1.0f), Exp(Neg(y2))));
}

// log(1 + e^x) = max(x, 0) + log(1 + y) with y = e^-|x|, 0 <= y <= 1. With s = y / (2 + y), at most
// 1/3, log(1 + y) is 2 s (1 + s^2 / 3 + ... + s^14 / 15); the next term is below 2e-9 of the sum.
LIME_LANES_SHARED F32x16 Softplus(F32x16 x) {
  const F32x16 y = Exp(Neg(Greater(x, Neg(x))));
  const F32x16 s = Div(y, Add(Set(2.0f), y)), s2 = Mul(s, s);
  F32x16 p = Set(1.0f / 15);
  p = MulAdd(p, s2, Set(1.0f / 13));
  p = MulAdd(p, s2, Set(1.0f / 11));
  p = MulAdd(p, s2, Set(1.0f / 9));
  p = MulAdd(p, s2, Set(1.0f / 7));
  p = MulAdd(p, s2, Set(1.0f / 5));
  p = MulAdd(p, s2, Set(1.0f / 3));
  p = MulAdd(p, s2, Set(1.0f));
  return Add(ZeroIfNegative(x), Mul(Mul(Set(2.0f), s), p));
}

}  // namespace lime::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
