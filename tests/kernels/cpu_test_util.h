// Helpers of the tests of kernels/cpu: random data by seed in any working dtype, and runs on every
// instruction set of this CPU.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

// Highway must know before its first header what the operators are compiled for: of the other sets,
// ForEachTarget would run the scalar code.
// clang-format off
#include "kernels/cpu/base/hwy_targets.h"
#include "hwy/targets.h"
// clang-format on
#include "planner/base/dtype.h"
#include "planner/base/float_bits.h"
#include "tests/kernels/random_floats.h"

namespace lime::cpu {

inline constexpr DType kWorkingDTypes[] = {DType::kBF16, DType::kF16, DType::kF32};

// Elements of a working dtype, read and written as float.
struct Array {
  DType dtype;
  std::vector<std::byte> data;

  Array(DType dtype, int64_t n) : dtype(dtype), data(n * ElementBytes(dtype)) {}

  int64_t size() const { return static_cast<int64_t>(data.size()) / ElementBytes(dtype); }
  void* ptr() { return data.data(); }
  const void* ptr() const { return data.data(); }
  float operator[](int64_t i) const {
    float value = 0;
    WithWorkingType(dtype, [&](auto type) { value = ToFloat(reinterpret_cast<const decltype(type)*>(data.data())[i]); });
    return value;
  }
  void Set(int64_t i, float value) {
    WithWorkingType(dtype, [&](auto type) { reinterpret_cast<decltype(type)*>(data.data())[i] = FromFloat<decltype(type)>(value); });
  }
};

inline Array RandomArray(DType dtype, int64_t n, uint32_t seed, float scale = 1.0f) {
  Array a(dtype, n);
  const std::vector<float> x = RandomFloats(n, seed, scale);
  for (int64_t i = 0; i < n; ++i) a.Set(i, x[i]);
  return a;
}

// The possible error of a result near x that is computed in fp32 and rounded once: half a unit in
// the last place of `dtype`, and a little for the fp32 arithmetic.
inline double Tolerance(DType dtype, double x, double arithmetic = 2e-6) {
  const double relative = dtype == DType::kBF16 ? 0x1p-8 : dtype == DType::kF16 ? 0x1p-11 : 0x1p-23;
  const double smallest = dtype == DType::kF16 ? 0x1p-24 : 1e-37;
  return std::abs(x) * relative * 1.01 + smallest + arithmetic * (1 + std::abs(x));
}

// Calls fn on each instruction set that both this build and this CPU have. The scalar code comes
// last; every build has it. Sanitizer builds leave it out: it has the same source as the others,
// and is fifty times slower there.
template <typename Fn>
void ForEachTarget(Fn fn) {
#ifdef LIME_SANITIZED
  const int64_t targets = HWY_TARGETS & hwy::SupportedTargets() & ~(HWY_SCALAR | HWY_EMU128);
#else
  const int64_t targets = HWY_TARGETS & (hwy::SupportedTargets() | HWY_SCALAR | HWY_EMU128);
#endif
  for (int64_t rest = targets; rest != 0; rest &= rest - 1) {
    hwy::SetSupportedTargetsForTest(rest & -rest);
    fn(std::string(hwy::TargetName(rest & -rest)));
  }
  hwy::SetSupportedTargetsForTest(0);
}

template <typename T>
std::vector<std::byte> Bits(const std::vector<T>& x) {
  std::vector<std::byte> bits(x.size() * sizeof(T));
  std::memcpy(bits.data(), x.data(), bits.size());
  return bits;
}

}  // namespace lime::cpu
